// SPDX-License-Identifier: Apache-2.0
#include "agent_link.hpp"

#include <poll.h>
#include <sys/auxv.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace paralet::pin {
namespace {

std::atomic<bool> said{false};

/// For an agent that has no port in time, or no processor, to say so.
constexpr Nanos kGrace = 100 * kMillisecond;

// System calls, not functions: the program, or another preloaded library, may have a `connect` or a `close` of its own.
int connect_to(int fd, const sockaddr_un& to, std::size_t length) {
  return static_cast<int>(::syscall(SYS_connect, fd, &to, static_cast<socklen_t>(length)));
}

std::string_view from_environment() {
  const char* path = ::getauxval(AT_SECURE) != 0 ? nullptr : ::getenv("PARALET_PIN_AGENT");
  return path == nullptr ? std::string_view{} : std::string_view{path};
}

void close_descriptor(int fd) { ::syscall(SYS_close, fd); }

}  // namespace

AgentLink::AgentLink() : AgentLink(from_environment()) {}

AgentLink::AgentLink(std::string_view path) {
  if (path.size() >= path_.size()) return;
  path.copy(path_.data(), path.size());
  length_ = path.size();
}

int AgentLink::send(const Request& request) const {
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, path_.data(), length_);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  if (connect_to(fd, to, offsetof(sockaddr_un, sun_path) + length_ + 1) == 0 &&
      ::send(fd, &request, sizeof request, MSG_NOSIGNAL) == sizeof request) {
    return fd;
  }
  close_descriptor(fd);
  return -1;
}

std::optional<Reply> AgentLink::ask(const Request& request) const {
  const Nanos until = now() + request.wait + kGrace;
  const int fd = send(request);
  if (fd < 0) {
    say_once("paralet pin: the agent does not answer, so connections keep the ports that the kernel chooses\n");
    return std::nullopt;
  }
  Reply reply{};
  ssize_t got = -1;
  for (Nanos left = until - now(); left >= 0; left = until - now()) {
    pollfd waited{.fd = fd, .events = POLLIN, .revents = 0};
    const timespec timeout{.tv_sec = left / kSecond, .tv_nsec = left % kSecond};
    const int ready = ::ppoll(&waited, 1, &timeout, nullptr);
    if (ready < 0 && errno == EINTR) continue;
    if (ready > 0) got = ::recv(fd, &reply, sizeof reply, MSG_DONTWAIT);
    break;
  }
  close_descriptor(fd);
  if (got < 0) return std::nullopt;
  if (got != sizeof reply || reply.magic != kMagic) {  // an agent of another version closes, or replies otherwise
    say_once(
        "paralet pin: the agent gives no reply that this version of paralet knows, so connections keep the ports that "
        "the kernel chooses\n");
    return std::nullopt;
  }
  if (reply.away != 0) {
    say_once("paralet pin: the path service does not answer, so connections keep the ports that the kernel chooses\n");
  }
  return reply;
}

void AgentLink::tell(const Request& request) const {
  if (const int fd = send(request); fd >= 0) close_descriptor(fd);
}

void say_once(std::string_view sentence) {
  if (said.exchange(true)) return;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, sentence.data(), sentence.size());
}

}  // namespace paralet::pin
