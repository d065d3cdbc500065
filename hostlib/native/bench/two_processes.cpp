// SPDX-License-Identifier: Apache-2.0
#include "two_processes.hpp"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <system_error>

#include "base/file_descriptor.hpp"

namespace paralet::bench {

void check(bool ok, const char* what) {
  if (!ok) throw std::system_error(errno, std::generic_category(), what);
}

void write_all(int fd, const std::byte* data, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = ::write(fd, data, bytes);
    check(n > 0, "write");
    data += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

void read_all(int fd, std::byte* data, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = ::read(fd, data, bytes);
    check(n > 0, "read");
    data += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

Nanos processor_time() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto nanos = [](const timeval& t) { return t.tv_sec * kSecond + t.tv_usec * kMicrosecond; };
  return nanos(usage.ru_utime) + nanos(usage.ru_stime);
}

void with_two_processes(const std::function<void(int link)>& child, const std::function<void(int link)>& parent) {
  std::array<int, 2> pair{};
  check(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) == 0, "socketpair");
  const pid_t pid = ::fork();
  check(pid >= 0, "fork");
  if (pid == 0) {
    ::close(pair[0]);
    ::prctl(PR_SET_NAME, "receiver");  // so that profilers can distinguish the processes
    try {
      child(pair[1]);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "paralet-bench: receiver: %s\n", error.what());
      std::_Exit(1);
    }
    std::_Exit(0);
  }
  ::close(pair[1]);
  const FileDescriptor link(pair[0]);
  try {
    parent(link.get());
  } catch (...) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    throw;
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (status != 0) throw std::runtime_error("the receiving process failed");
}

OnCores::OnCores(Share share) : before_{} {
  check(::sched_getaffinity(0, sizeof before_, &before_) == 0, "sched_getaffinity");
  int first = 0;
  while (!CPU_ISSET(first, &before_)) ++first;
  cpu_set_t wanted = before_;
  CPU_CLR(first, &wanted);
  if (CPU_COUNT(&wanted) == 0) return;
  if (share == Share::kFirst) {
    CPU_ZERO(&wanted);
    CPU_SET(first, &wanted);
  }
  check(::sched_setaffinity(0, sizeof wanted, &wanted) == 0, "sched_setaffinity");
}

OnCores::~OnCores() { ::sched_setaffinity(0, sizeof before_, &before_); }

}  // namespace paralet::bench
