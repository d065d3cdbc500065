// SPDX-License-Identifier: Apache-2.0
// A benchmark in two processes: starting them, exchanging values between them, and their processor time.
#pragma once

#include <sched.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>

#include "base/clock.hpp"

namespace paralet::bench {

/// Throws std::system_error with `errno` unless `ok`.
void check(bool ok, const char* what);
void write_all(int fd, const std::byte* data, std::size_t bytes);
void read_all(int fd, std::byte* data, std::size_t bytes);

template <typename T>
void tell(int fd, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  write_all(fd, reinterpret_cast<const std::byte*>(&value), sizeof value);
}
template <typename T>
T hear(int fd) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value{};
  read_all(fd, reinterpret_cast<std::byte*>(&value), sizeof value);
  return value;
}

/// Processor time of all threads of this process, in user and kernel mode (getrusage).
Nanos processor_time();

/// Time and processor time of this process for some work.
struct Spent {
  Nanos time = 0;
  Nanos processor = 0;
};
template <typename Work>
Spent spent(const Work& work) {
  const Nanos processor = processor_time();
  const Nanos begin = now();
  work();
  return {.time = now() - begin, .processor = processor_time() - processor};
}

/// Runs `child` in a second process with one end of a socket pair and `parent` here with the other. Throws what
/// `parent` throws, or std::runtime_error when the child fails.
void with_two_processes(const std::function<void(int link)>& child, const std::function<void(int link)>& parent);

/// While it exists, the calling thread and the threads it starts run on the first core that this process may use, or on
/// all other cores: the two sides then share no core, like two hosts. With a single core it has no effect.
class OnCores {
 public:
  enum class Share : std::uint8_t { kFirst, kOthers };
  explicit OnCores(Share share);
  OnCores(const OnCores&) = delete;
  OnCores& operator=(const OnCores&) = delete;
  ~OnCores();

 private:
  cpu_set_t before_;
};

}  // namespace paralet::bench
