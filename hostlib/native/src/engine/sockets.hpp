// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/epoll.h>

#include <span>

#include "base/file_descriptor.hpp"

namespace paralet {

/// The descriptors that wake the progress thread: those of the back end, of channels and of listeners.
class Sockets {
 public:
  /// Throws DeviceError.
  Sockets();

  /// Wakes the progress thread when `fd` is readable, or writable if `write`.
  void watch(int fd, bool write);
  /// Watches only for the end of `fd`, without removing it from the set. False when that failed.
  bool ignore(int fd);
  /// What has become readable or writable: up to as many as fit `events`. Does not wait.
  std::span<const epoll_event> ready(std::span<epoll_event> events) const;
  /// Readable when any of them is.
  [[nodiscard]] int fd() const { return epoll_.get(); }
  void close() { epoll_.reset(); }

 private:
  FileDescriptor epoll_;
};

}  // namespace paralet
