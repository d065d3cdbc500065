// SPDX-License-Identifier: Apache-2.0
// UDP between the loopback addresses of one process, in memory. The linker calls these functions in place of the C
// library's (--wrap, CMakeLists.txt). The kernel took more than a quarter of the time, and AddressSanitizer does not
// see what a system call reads and writes. Here instrumented code copies each byte that is sent or received.
//
// Only IPv4 sockets that are opened as non-blocking are handled; all others are the kernel's. They do what Linux's do:
// - a run (UDP_SEGMENT) stays whole for a receiver with UDP_GRO, others get its packets one by one
// - a receiver is told the source, the size of a run's packets, the TOS byte, and the time of arrival, if it asked
// - a packet to an address or port without a socket is lost, one that is not to loopback cannot be sent
// Random numbers and the real-time clock are a function of the input, so that a packet's age and a QP's number are too.
#include "loopback.hpp"

#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "base/random.hpp"

namespace paralet::fuzz {
namespace {

constexpr int kFirstDescriptor = 1 << 20;  // the kernel's are below
constexpr std::uint16_t kFirstFreePort = 32768;
constexpr std::size_t kMaxDatagram = 65507;
constexpr std::size_t kMaxSegments = 64;                   // UDP_MAX_SEGMENTS in include/linux/udp.h
constexpr std::size_t kMaxWaiting = std::size_t{8} << 20;  // bytes of a receive buffer

int fail(int error) {
  errno = error;
  return -1;
}

bool is_loopback(const sockaddr_in& address) { return ntohl(address.sin_addr.s_addr) >> 24 == 127; }

struct Run {
  std::vector<std::byte> bytes;
  std::size_t segment_bytes = 0;  ///< 0: a single packet
  std::uint8_t tos = 0;
  sockaddr_in from{};
  Nanos arrived = 0;
};

struct Socket {
  sockaddr_in local{};
  std::uint8_t tos = 0;
  bool deaf = false;  ///< a filter drops what comes
  bool shares = false;
  bool takes_runs = false;
  bool tells_tos = false;
  bool tells_time = false;
  std::deque<Run> waiting = {};
  std::size_t waiting_bytes = 0;
};

/// Appends a control message, if there is room.
template <typename Value>
void tell(msghdr& header, std::size_t& used, int level, int type, const Value& value) {
  if (header.msg_controllen - used < CMSG_SPACE(sizeof value)) return;
  auto* control = reinterpret_cast<cmsghdr*>(static_cast<std::byte*>(header.msg_control) + used);
  *control = {.cmsg_len = CMSG_LEN(sizeof value), .cmsg_level = level, .cmsg_type = type};
  std::memcpy(CMSG_DATA(control), &value, sizeof value);
  used += CMSG_SPACE(sizeof value);
}

class Loopback {
 public:
  int open() {
    const MutexLock lock(mutex_);
    int fd = kFirstDescriptor;
    while (sockets_.contains(fd)) ++fd;
    sockets_.try_emplace(fd);
    return fd;
  }

  void close(int fd) {
    const MutexLock lock(mutex_);
    sockets_.erase(fd);
  }

  int bind(int fd, const sockaddr_in& wanted) {
    const MutexLock lock(mutex_);
    if (!is_loopback(wanted)) return fail(EADDRNOTAVAIL);
    sockaddr_in local = wanted;
    Socket& socket = sockets_.at(fd);
    if (wanted.sin_port == 0) {
      do {
        local.sin_port = htons(next_port_);
        next_port_ = next_port_ == UINT16_MAX ? kFirstFreePort : next_port_ + 1;
      } while (taken(local, socket.shares));
    } else if (taken(local, socket.shares)) {
      return fail(EADDRINUSE);
    }
    socket.local = local;
    return 0;
  }

  sockaddr_in local(int fd) {
    const MutexLock lock(mutex_);
    return sockets_.at(fd).local;
  }

  void set(int fd, int level, int name, int value) {
    const MutexLock lock(mutex_);
    Socket& socket = sockets_.at(fd);
    if (level == IPPROTO_UDP && name == UDP_GRO) socket.takes_runs = value != 0;
    if (level == IPPROTO_IP && name == IP_TOS) socket.tos = static_cast<std::uint8_t>(value);
    if (level == IPPROTO_IP && name == IP_RECVTOS) socket.tells_tos = value != 0;
    if (level == SOL_SOCKET && name == SO_TIMESTAMPNS) socket.tells_time = value != 0;
    if (level == SOL_SOCKET && name == SO_REUSEADDR) socket.shares = value != 0;
    if (level == SOL_SOCKET && name == SO_ATTACH_FILTER) socket.deaf = true;
  }

  long send(int fd, const sockaddr* to, std::span<const iovec> pieces, std::size_t segment_bytes) {
    const MutexLock lock(mutex_);
    if (to->sa_family != AF_INET) return fail(EAFNOSUPPORT);
    sockaddr_in target{};
    std::memcpy(&target, to, sizeof target);
    const Socket& from = sockets_.at(fd);
    Run run{.segment_bytes = segment_bytes, .tos = from.tos, .from = from.local, .arrived = time_};
    for (const iovec& piece : pieces) {
      const auto* bytes = static_cast<const std::byte*>(piece.iov_base);
      run.bytes.insert(run.bytes.end(), bytes, bytes + piece.iov_len);
    }
    const auto size = static_cast<long>(run.bytes.size());
    if (run.bytes.size() > kMaxDatagram) return fail(EMSGSIZE);
    if (run.segment_bytes != 0 && run.bytes.size() > run.segment_bytes * kMaxSegments) return fail(EINVAL);
    if (!is_loopback(target)) return fail(EINVAL);
    if (run.bytes.size() <= run.segment_bytes) run.segment_bytes = 0;
    const auto receiver = std::ranges::find_if(
        sockets_, [&](const auto& entry) { return same(entry.second.local, target) && !entry.second.deaf; });
    if (receiver != sockets_.end()) deliver(receiver->second, std::move(run));
    return size;
  }

  /// The next run or packet, in the form of recvmsg(2).
  long receive(int fd, msghdr& header) {
    const MutexLock lock(mutex_);
    Socket& socket = sockets_.at(fd);
    if (socket.waiting.empty()) return fail(EAGAIN);
    const Run run = std::move(socket.waiting.front());
    socket.waiting.pop_front();
    socket.waiting_bytes -= run.bytes.size();
    std::span<const std::byte> rest(run.bytes);
    for (const iovec& piece : std::span(header.msg_iov, header.msg_iovlen)) {
      const std::size_t bytes = std::min(rest.size(), piece.iov_len);
      if (bytes != 0) std::memcpy(piece.iov_base, rest.data(), bytes);
      rest = rest.subspan(bytes);
    }
    header.msg_flags = rest.empty() ? 0 : MSG_TRUNC;
    if (header.msg_name != nullptr) {
      std::memcpy(header.msg_name, &run.from, std::min<std::size_t>(sizeof run.from, header.msg_namelen));
      header.msg_namelen = sizeof run.from;
    }
    std::size_t used = 0;
    if (socket.tells_time) {
      const timespec time{.tv_sec = run.arrived / kSecond, .tv_nsec = run.arrived % kSecond};
      tell(header, used, SOL_SOCKET, SCM_TIMESTAMPNS, time);
    }
    if (run.segment_bytes != 0) tell(header, used, IPPROTO_UDP, UDP_GRO, static_cast<int>(run.segment_bytes));
    if (socket.tells_tos) tell(header, used, IPPROTO_IP, IP_TOS, run.tos);
    header.msg_controllen = used;
    return static_cast<long>(run.bytes.size() - rest.size());
  }

  /// The real-time clock: a microsecond passes with each look at it.
  Nanos time() {
    const MutexLock lock(mutex_);
    return time_ += kMicrosecond;
  }

  void random(std::span<std::byte> out) {
    const MutexLock lock(mutex_);
    for (std::byte& byte : out) byte = static_cast<std::byte>(random_.next());
  }

  void restart() {
    const MutexLock lock(mutex_);
    time_ = kSecond;
    random_ = SplitMix64(1);
  }

 private:
  static bool same(const sockaddr_in& a, const sockaddr_in& b) {
    return a.sin_addr.s_addr == b.sin_addr.s_addr && a.sin_port == b.sin_port;
  }

  bool taken(const sockaddr_in& local, bool shares) PARALET_REQUIRES(mutex_) {
    return std::ranges::any_of(sockets_, [&](const auto& entry) {
      return same(entry.second.local, local) && !(entry.second.shares && shares);
    });
  }

  static void deliver(Socket& socket, Run run) {
    const std::size_t size = run.bytes.size();
    if (socket.waiting_bytes + size > kMaxWaiting) return;
    socket.waiting_bytes += size;
    if (run.segment_bytes == 0 || socket.takes_runs) {
      socket.waiting.push_back(std::move(run));
      return;
    }
    for (std::size_t at = 0; at < size; at += run.segment_bytes) {
      const auto first = run.bytes.begin() + static_cast<std::ptrdiff_t>(at);
      const auto last = first + static_cast<std::ptrdiff_t>(std::min(run.segment_bytes, size - at));
      socket.waiting.push_back({.bytes = {first, last}, .tos = run.tos, .from = run.from, .arrived = run.arrived});
    }
  }

  Mutex mutex_;
  std::map<int, Socket> sockets_ PARALET_GUARDED_BY(mutex_);
  std::uint16_t next_port_ PARALET_GUARDED_BY(mutex_) = kFirstFreePort;
  Nanos time_ PARALET_GUARDED_BY(mutex_) = kSecond;
  SplitMix64 random_ PARALET_GUARDED_BY(mutex_){1};
};

Loopback& loopback() {
  static auto& only = *new Loopback;  // never destroyed: threads of devices outlive static destructors
  return only;
}

bool ours(int fd) { return fd >= kFirstDescriptor; }

/// The size that a UDP_SEGMENT message asks for, 0 without one.
std::size_t segment_bytes(const msghdr& header) {
  const cmsghdr* control = CMSG_FIRSTHDR(&header);
  std::uint16_t out = 0;
  if (control != nullptr && control->cmsg_level == IPPROTO_UDP && control->cmsg_type == UDP_SEGMENT) {
    std::memcpy(&out, CMSG_DATA(control), sizeof out);
  }
  return out;
}

int receive_many(int fd, std::span<mmsghdr> messages) {
  int count = 0;
  for (mmsghdr& message : messages) {
    const long got = loopback().receive(fd, message.msg_hdr);
    if (got < 0) return count == 0 ? -1 : count;
    message.msg_len = static_cast<unsigned>(got);
    ++count;
  }
  return count;
}

}  // namespace

void restart_system() { loopback().restart(); }

}  // namespace paralet::fuzz

// NOLINTBEGIN(bugprone-reserved-identifier,cert-*,cppcoreguidelines-pro-type-vararg,readability-*)
// The names are the linker's, the parameters the C library's.
extern "C" {

int __real_socket(int family, int type, int protocol);
int __wrap_socket(int family, int type, int protocol) {
  if (family == AF_INET && (type & SOCK_NONBLOCK) != 0 && (type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) == SOCK_DGRAM) {
    return paralet::fuzz::loopback().open();
  }
  return __real_socket(family, type, protocol);
}

int __real_close(int fd);
int __wrap_close(int fd) {
  if (!paralet::fuzz::ours(fd)) return __real_close(fd);
  paralet::fuzz::loopback().close(fd);
  return 0;
}

int __real_bind(int fd, const sockaddr* address, socklen_t length);
int __wrap_bind(int fd, const sockaddr* address, socklen_t length) {
  if (!paralet::fuzz::ours(fd)) return __real_bind(fd, address, length);
  sockaddr_in local{};
  std::memcpy(&local, address, sizeof local);
  return paralet::fuzz::loopback().bind(fd, local);
}

int __real_epoll_ctl(int epoll, int operation, int fd, epoll_event* event);
/// Our sockets wake nobody: a thread that sleeps looks for packets when its wait ends.
int __wrap_epoll_ctl(int epoll, int operation, int fd, epoll_event* event) {
  return paralet::fuzz::ours(fd) ? 0 : __real_epoll_ctl(epoll, operation, fd, event);
}

int __real_getsockname(int fd, sockaddr* address, socklen_t* length);
int __wrap_getsockname(int fd, sockaddr* address, socklen_t* length) {
  if (!paralet::fuzz::ours(fd)) return __real_getsockname(fd, address, length);
  const sockaddr_in local = paralet::fuzz::loopback().local(fd);
  std::memcpy(address, &local, sizeof local);
  *length = sizeof local;
  return 0;
}

int __real_setsockopt(int fd, int level, int name, const void* value, socklen_t length);
int __wrap_setsockopt(int fd, int level, int name, const void* value, socklen_t length) {
  if (!paralet::fuzz::ours(fd)) return __real_setsockopt(fd, level, name, value, length);
  int number = 0;
  std::memcpy(&number, value, sizeof number);
  paralet::fuzz::loopback().set(fd, level, name, number);
  return 0;
}

ssize_t __real_recv(int fd, void* buffer, size_t size, int flags);
ssize_t __wrap_recv(int fd, void* buffer, size_t size, int flags) {
  if (!paralet::fuzz::ours(fd)) return __real_recv(fd, buffer, size, flags);
  iovec piece{.iov_base = buffer, .iov_len = size};
  msghdr header{};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  return paralet::fuzz::loopback().receive(fd, header);
}

/// The engine's calls for packets (soft/udp_sockets.cpp), all on our sockets.
long __wrap_syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  const int fd = va_arg(list, int);
  void* const first = va_arg(list, void*);
  long result = 0;
  switch (number) {
    case SYS_recvmsg:
      result = paralet::fuzz::loopback().receive(fd, *static_cast<msghdr*>(first));
      break;
    case SYS_recvmmsg:
      result = paralet::fuzz::receive_many(fd, {static_cast<mmsghdr*>(first), va_arg(list, std::size_t)});
      break;
    case SYS_sendmsg: {
      const auto& header = *static_cast<const msghdr*>(first);
      result =
          paralet::fuzz::loopback().send(fd, static_cast<const sockaddr*>(header.msg_name),
                                         {header.msg_iov, header.msg_iovlen}, paralet::fuzz::segment_bytes(header));
      break;
    }
    case SYS_sendto: {
      const iovec piece{.iov_base = first, .iov_len = va_arg(list, std::size_t)};
      static_cast<void>(va_arg(list, int));  // flags
      result = paralet::fuzz::loopback().send(fd, va_arg(list, const sockaddr*), {&piece, 1}, 0);
      break;
    }
    default:
      __builtin_trap();
  }
  va_end(list);
  return result;
}

int __real_clock_gettime(clockid_t clock, timespec* time);
int __wrap_clock_gettime(clockid_t clock, timespec* time) {
  if (clock != CLOCK_REALTIME) return __real_clock_gettime(clock, time);
  const paralet::Nanos now = paralet::fuzz::loopback().time();
  *time = {.tv_sec = now / paralet::kSecond, .tv_nsec = now % paralet::kSecond};
  return 0;
}

ssize_t __wrap_getrandom(void* buffer, size_t size, unsigned /*flags*/) {
  paralet::fuzz::loopback().random({static_cast<std::byte*>(buffer), size});
  return static_cast<ssize_t>(size);
}

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier,cert-*,cppcoreguidelines-pro-type-vararg,readability-*)
