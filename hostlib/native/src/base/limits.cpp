// SPDX-License-Identifier: Apache-2.0
#include "base/limits.hpp"

#include <fcntl.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/errors.hpp"
#include "base/file_descriptor.hpp"

namespace paralet {

std::string error_text(int number) {
  std::string text = std::generic_category().message(number);
  if (number == EMFILE) return text + ": raise the limit of this process with `ulimit -n`";
  if (number == ENFILE) return text + ": raise the limit of this machine with `sysctl fs.file-max`";
  return text;
}

std::string descriptor_shortage() {
  const FileDescriptor probe(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (probe.valid() || (errno != EMFILE && errno != ENFILE)) return {};
  return "; this process may open no more files: " + error_text(errno);
}

std::thread start_thread(std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    throw DeviceError("cannot start a thread: " + error_text(error.code().value()) +
                      ": raise the limit of this user with `ulimit -u`, or that of the container (pids.max)");
  }
}

}  // namespace paralet
