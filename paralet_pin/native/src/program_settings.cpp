// SPDX-License-Identifier: Apache-2.0
#include "program_settings.hpp"

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <system_error>

namespace paralet::pin {
namespace {

constexpr Nanos kDefaultWait = 200 * kMillisecond;
constexpr Nanos kLongestWait = 60 * kSecond;

std::string_view variable(const char* name) {
  const char* value = ::getenv(name);
  return value == nullptr ? std::string_view{} : std::string_view{value};
}

/// Whole microseconds, as `paralet pin` writes them.
Nanos wait_time() {
  const std::string_view text = variable("PARALET_PIN_WAIT_US");
  Nanos microseconds = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), microseconds);
  if (read.ec != std::errc() || microseconds < 0) return kDefaultWait;
  return microseconds > kLongestWait / kMicrosecond ? kLongestWait : microseconds * kMicrosecond;
}

}  // namespace

ProgramSettings program_settings() {
  return {.networks = Networks(variable("PARALET_PIN_NETWORKS")), .wait = wait_time()};
}

}  // namespace paralet::pin
