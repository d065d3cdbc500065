// SPDX-License-Identifier: Apache-2.0
#include "log.hpp"

#include <unistd.h>

#include <cstdlib>
#include <string>

namespace paralet::cpu_device {

bool debugging() {
  static const bool on = [] {
    const char* value = std::getenv("PARALET_CPU_DEVICE_DEBUG");
    return value != nullptr && *value != '\0' && std::string_view(value) != "0";
  }();
  return on;
}

void warn(std::string_view sentence) {
  // One write per line, so that lines of several threads do not mix.
  const std::string line = "paralet CPU device: " + std::string(sentence) + "\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

void debug(std::string_view sentence) {
  if (debugging()) warn(sentence);
}

}  // namespace paralet::cpu_device
