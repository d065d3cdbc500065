// SPDX-License-Identifier: Apache-2.0
#include "soft/udp_sockets.hpp"

#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "base/limits.hpp"
#include "wire/routing_header.hpp"
#include "wire/wire.hpp"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef UDP_NO_CHECK6_RX
#define UDP_NO_CHECK6_RX 102
#endif
#ifndef IPV6_AUTOFLOWLABEL
#define IPV6_AUTOFLOWLABEL 70
#endif

namespace paralet {
namespace {

FileDescriptor udp_socket(int family) {
  FileDescriptor fd(::socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) throw DeviceError("cannot open a UDP socket: " + error_text(errno));
  return fd;
}

void set_buffer(int fd, int forced, int ordinary) {
  const int bytes = static_cast<int>(kSocketBufferBytes);
  // The forced form needs CAP_NET_ADMIN; the ordinary one is cut to net.core.[rw]mem_max.
  if (setsockopt(fd, SOL_SOCKET, forced, &bytes, sizeof bytes) != 0) {
    setsockopt(fd, SOL_SOCKET, ordinary, &bytes, sizeof bytes);
  }
}

/// What the kernel says about a run besides its bytes.
struct Ancillary {
  std::size_t segment_bytes = 0;  ///< of each packet but the last, 0 for a single packet
  /// CE (RFC 3168). GRO does not merge packets of different TOS bytes (Linux, inet_gro_flush in include/net/gro.h);
  /// kernels before 6.9 did, and report that of a run's first packet.
  bool marked = false;
  Nanos arrived = 0;  ///< by CLOCK_REALTIME, 0 where the kernel does not say
};

Nanos nanos(const timespec& time) { return time.tv_sec * kSecond + time.tv_nsec; }

/// CLOCK_REALTIME, which the kernel's time stamps are by.
Nanos real_time() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME, &time);
  return nanos(time);
}

/// How long ago the run came to the socket, at most a second, should somebody set the clock.
Nanos age(const Ancillary& run, Nanos now) {
  return run.arrived == 0 ? 0 : std::clamp<Nanos>(now - run.arrived, 0, kSecond);
}

Ancillary ancillary(msghdr& header) {
  Ancillary out;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
      int size = 0;
      std::memcpy(&size, CMSG_DATA(c), sizeof size);
      out.segment_bytes = size > 0 ? static_cast<std::size_t>(size) : 0;
    } else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) {
      out.marked = (*CMSG_DATA(c) & wire::kEcnMask) == wire::kEcnCe;
    } else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS) {
      int traffic_class = 0;
      std::memcpy(&traffic_class, CMSG_DATA(c), sizeof traffic_class);
      out.marked = (traffic_class & wire::kEcnMask) == wire::kEcnCe;
    } else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPNS) {
      timespec time{};
      std::memcpy(&time, CMSG_DATA(c), sizeof time);
      out.arrived = nanos(time);
    }
  }
  return out;
}

SendResult sent(long result) {
  if (result >= 0) return SendResult::kSent;
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) return SendResult::kBusy;
  return errno == EMSGSIZE || errno == EINVAL || errno == EIO ? SendResult::kRefused : SendResult::kFailed;
}

bool bind_to(int fd, const IpAddress& address, std::uint16_t port) {
  const SocketAddress local(address, port);
  return ::bind(fd, local.get(), local.length()) == 0;
}

void set_option(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof value); }

}  // namespace

std::size_t granted_receive_buffer() {
  const FileDescriptor fd = udp_socket(AF_INET);
  set_buffer(fd.get(), SO_RCVBUFFORCE, SO_RCVBUF);
  int granted = 0;
  socklen_t length = sizeof granted;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &granted, &length);
  return static_cast<std::size_t>(granted) / 2;  // Linux doubles the size for its bookkeeping (socket(7))
}

ReceiveSocket::ReceiveSocket(const IpAddress& address, bool roce_port)
    : socket_(udp_socket(family_of(address))), buffers_(kBatch * wire::kMaxDatagramBytes) {
  set_buffer(fd(), SO_RCVBUFFORCE, SO_RCVBUF);
  set_option(fd(), IPPROTO_UDP, UDP_GRO, 1);  // an older kernel delivers packets one by one
  if (address.is_ipv4()) {
    set_option(fd(), IPPROTO_IP, IP_RECVTOS, 1);
  } else {
    set_option(fd(), IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
    // RoCEv2 packets need no UDP checksum (IBTA annex A17.3.2): the ICRC protects them.
    set_option(fd(), IPPROTO_UDP, UDP_NO_CHECK6_RX, 1);
  }
  set_option(fd(), SOL_SOCKET, SO_TIMESTAMPNS, 1);
  const bool bound = roce_port
                         ? bind_to(fd(), address, wire::kRocePort) || (errno == EADDRINUSE && bind_to(fd(), address, 0))
                         : bind_to(fd(), address, 0);
  if (!bound) {
    throw DeviceError("cannot receive on " + format_address(address) + ": " + std::strerror(errno));
  }
  SocketAddress local;
  getsockname(fd(), local.get(), local.length_place());
  port_ = local.port();
  for (std::size_t i = 0; i < kBatch; ++i) {
    pieces_[i] = {.iov_base = buffers_.data() + i * wire::kMaxDatagramBytes, .iov_len = wire::kMaxDatagramBytes};
    msghdr& header = messages_[i].msg_hdr;
    header.msg_name = sources_[i].get();
    header.msg_iov = &pieces_[i];
    header.msg_iovlen = 1;
    header.msg_control = controls_[i].bytes.data();
  }
}

std::span<const Arrival> ReceiveSocket::receive(std::size_t limit) {
  for (std::size_t i = 0; i < used_; ++i) {
    messages_[i].msg_hdr.msg_namelen = SocketAddress::kRoom;
    messages_[i].msg_hdr.msg_controllen = controls_[i].bytes.size();
  }
  // A polling thread would lose a tenth of its time to the C library's cancellation points, and to recvmmsg where
  // messages arrive one at a time.
  const std::size_t wanted = used_ > 1 || full_ ? std::min(limit, kBatch) : 1;
  if (wanted == 1) {
    const long length = ::syscall(SYS_recvmsg, fd(), &messages_[0].msg_hdr, 0);
    used_ = length >= 0 ? 1 : 0;
    messages_[0].msg_len = static_cast<unsigned>(std::max(0L, length));
  } else {
    const long count = ::syscall(SYS_recvmmsg, fd(), messages_.data(), wanted, 0, nullptr);
    used_ = count > 0 ? static_cast<std::size_t>(count) : 0;
  }
  full_ = used_ == wanted;
  const Nanos now = used_ > 0 ? real_time() : 0;
  for (std::size_t i = 0; i < used_; ++i) {
    msghdr& header = messages_[i].msg_hdr;
    Arrival& arrival = arrivals_[i];
    arrival.bytes = {buffers_.data() + i * wire::kMaxDatagramBytes, messages_[i].msg_len};
    const Ancillary more = ancillary(header);
    arrival.segment_bytes = more.segment_bytes > 0 ? more.segment_bytes : messages_[i].msg_len;
    arrival.origin = {
        .address = sources_[i].address(), .port = sources_[i].port(), .age = age(more, now), .marked = more.marked};
  }
  return {arrivals_.data(), used_};
}

std::optional<Scattered> ReceiveSocket::receive_into(std::span<iovec> pieces) {
  SocketAddress source;
  Control control;
  msghdr header{.msg_name = source.get(),
                .msg_namelen = SocketAddress::kRoom,
                .msg_iov = pieces.data(),
                .msg_iovlen = pieces.size(),
                .msg_control = control.bytes.data(),
                .msg_controllen = control.bytes.size(),
                .msg_flags = 0};
  const long length = ::syscall(SYS_recvmsg, fd(), &header, 0);
  if (length < 0) return std::nullopt;
  const auto bytes = static_cast<std::size_t>(length);
  const Ancillary more = ancillary(header);
  return Scattered{
      .bytes = bytes,
      .segment_bytes = more.segment_bytes > 0 ? more.segment_bytes : bytes,
      .origin = {
          .address = source.address(), .port = source.port(), .age = age(more, real_time()), .marked = more.marked}};
}

int SendSockets::acquire(const SendingAs& as) {
  if (const auto found = entries_.find(as); found != entries_.end()) {
    ++found->second.users;
    return found->second.socket.get();
  }
  FileDescriptor fd = udp_socket(family_of(address_));
  set_buffer(fd.get(), SO_SNDBUFFORCE, SO_SNDBUF);
  const bool ipv4 = address_.is_ipv4();
  if (ipv4) {
    // DF makes the IPv4 identification, which the ICRC covers, predictable (ip_select_ident_segs in the kernel's
    // net/ip.h).
    set_option(fd.get(), IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
  } else {
    set_option(fd.get(), IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO);
    // A flow label of its own for each source port, which switches may hash too (RFC 6438).
    set_option(fd.get(), IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, 1);
  }
  const int tos = as.traffic_class;
  if (tos != 0 &&
      setsockopt(fd.get(), ipv4 ? IPPROTO_IP : IPPROTO_IPV6, ipv4 ? IP_TOS : IPV6_TCLASS, &tos, sizeof tos) != 0) {
    throw DeviceError("cannot send with traffic class " + std::to_string(tos) + ": " + std::strerror(errno));
  }
  if (!as.segments.empty()) {
    const auto header = wire::routing_header(as.segments);
    if (setsockopt(fd.get(), IPPROTO_IPV6, IPV6_RTHDR, header.data(), static_cast<socklen_t>(header.size())) != 0) {
      throw DeviceError("cannot send along segments (an IPv6 routing header): " + error_text(errno));
    }
  }
  // Lanes of several processes may share a source port of one address, because these sockets receive nothing.
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  sock_filter drop_all[] = {{.code = BPF_RET | BPF_K, .jt = 0, .jf = 0, .k = 0}};
  const sock_fprog program{.len = 1, .filter = drop_all};
  setsockopt(fd.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
  if (!bind_to(fd.get(), address_, as.port)) {
    if (errno == EADDRINUSE) return -1;
    throw DeviceError("cannot send from UDP port " + std::to_string(as.port) + " of " + format_address(address_) +
                      ": " + std::strerror(errno));
  }
  const int raw = fd.get();
  entries_.emplace(as, Entry{std::move(fd), 1});
  return raw;
}

void SendSockets::release(const SendingAs& as) {
  const auto found = entries_.find(as);
  if (found != entries_.end() && --found->second.users == 0) entries_.erase(found);
}

SendResult send_batch(int fd, const IpAddress& address, std::uint16_t port, std::span<iovec> pieces,
                      std::uint16_t segment_bytes) {
  SocketAddress target(address, port);
  if (pieces.size() == 1 && segment_bytes == 0) {  // sendto costs the kernel less than sendmsg
    return sent(
        ::syscall(SYS_sendto, fd, pieces[0].iov_base, pieces[0].iov_len, MSG_NOSIGNAL, target.get(), target.length()));
  }
  msghdr message{};
  message.msg_name = target.get();
  message.msg_namelen = target.length();
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(std::uint16_t))> control{};
  if (segment_bytes != 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = IPPROTO_UDP;
    header->cmsg_type = UDP_SEGMENT;
    header->cmsg_len = CMSG_LEN(sizeof segment_bytes);
    std::memcpy(CMSG_DATA(header), &segment_bytes, sizeof segment_bytes);
  }
  return sent(::syscall(SYS_sendmsg, fd, &message, MSG_NOSIGNAL));
}

}  // namespace paralet
