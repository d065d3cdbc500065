// SPDX-License-Identifier: Apache-2.0
#include "udp_sockets.hpp"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "errors.hpp"
#include "interfaces.hpp"
#include "socket_address.hpp"
#include "wire.hpp"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace paralet {
namespace {

constexpr int kSocketBufferBytes = 8 << 20;

FileDescriptor udp_socket() {
  FileDescriptor fd(::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) throw std::system_error(errno, std::generic_category(), "cannot open a UDP socket");
  return fd;
}

void set_buffer(int fd, int forced, int ordinary) {
  const int bytes = kSocketBufferBytes;
  // The forced form needs CAP_NET_ADMIN; the ordinary one is cut to net.core.[rw]mem_max.
  if (setsockopt(fd, SOL_SOCKET, forced, &bytes, sizeof bytes) != 0) {
    setsockopt(fd, SOL_SOCKET, ordinary, &bytes, sizeof bytes);
  }
}

bool bind_to(int fd, std::uint32_t address, std::uint16_t port) {
  const sockaddr_in local = socket_address(address, port);
  return ::bind(fd, reinterpret_cast<const sockaddr*>(&local), sizeof local) == 0;
}

}  // namespace

ReceiveSocket::ReceiveSocket(std::uint32_t address) : socket_(udp_socket()), buffers_(kBatch * kBufferBytes) {
  set_buffer(fd(), SO_RCVBUFFORCE, SO_RCVBUF);
  const int on = 1;
  setsockopt(fd(), IPPROTO_UDP, UDP_GRO, &on, sizeof on);  // an older kernel delivers packets one by one
  if (!bind_to(fd(), address, wire::kRocePort) && !(errno == EADDRINUSE && bind_to(fd(), address, 0))) {
    throw DeviceError("cannot receive on " + format_ipv4(address) + ": " + std::strerror(errno));
  }
  sockaddr_in local{};
  socklen_t length = sizeof local;
  getsockname(fd(), reinterpret_cast<sockaddr*>(&local), &length);
  port_ = ntohs(local.sin_port);
}

std::size_t ReceiveSocket::receive(const FaultInjector::Deliver& deliver) {
  std::array<mmsghdr, kBatch> messages{};
  std::array<iovec, kBatch> pieces;
  std::array<sockaddr_in, kBatch> sources;
  struct alignas(cmsghdr) Control {
    std::array<char, CMSG_SPACE(sizeof(int))> bytes;
  };
  std::array<Control, kBatch> controls;
  for (std::size_t i = 0; i < kBatch; ++i) {
    pieces[i] = {.iov_base = buffers_.data() + i * kBufferBytes, .iov_len = kBufferBytes};
    msghdr& header = messages[i].msg_hdr;
    header.msg_name = &sources[i];
    header.msg_namelen = sizeof sources[i];
    header.msg_iov = &pieces[i];
    header.msg_iovlen = 1;
    header.msg_control = controls[i].bytes.data();
    header.msg_controllen = controls[i].bytes.size();
  }
  const int count = recvmmsg(fd(), messages.data(), kBatch, 0, nullptr);
  if (count <= 0) return 0;
  std::size_t packets = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    msghdr& header = messages[i].msg_hdr;
    std::size_t segment = messages[i].msg_len;
    for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
      if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
        int size = 0;
        std::memcpy(&size, CMSG_DATA(c), sizeof size);
        if (size > 0) segment = static_cast<std::size_t>(size);
      }
    }
    std::span<std::byte> rest(buffers_.data() + i * kBufferBytes, messages[i].msg_len);
    PacketOrigin origin{.address = ntohl(sources[i].sin_addr.s_addr), .port = ntohs(sources[i].sin_port)};
    while (!rest.empty()) {
      const std::size_t bytes = std::min(segment, rest.size());
      deliver(rest.first(bytes), origin);
      rest = rest.subspan(bytes);
      ++origin.likely_id;  // segment i of a batch carries identification i
      ++packets;
    }
  }
  return packets;
}

int SendSockets::acquire(std::uint16_t port) {
  if (const auto found = entries_.find(port); found != entries_.end()) {
    ++found->second.users;
    return found->second.socket.get();
  }
  FileDescriptor fd = udp_socket();
  set_buffer(fd.get(), SO_SNDBUFFORCE, SO_SNDBUF);
  // DF, and with it an IPv4 identification that the ICRC can know (ip_select_ident_segs in the kernel's net/ip.h).
  const int discover = IP_PMTUDISC_DO;
  setsockopt(fd.get(), IPPROTO_IP, IP_MTU_DISCOVER, &discover, sizeof discover);
  // Lanes of several processes may use the same source port of one address: nothing is received here.
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sock_filter drop_all[] = {{.code = BPF_RET | BPF_K, .jt = 0, .jf = 0, .k = 0}};
  const sock_fprog program{.len = 1, .filter = drop_all};
  setsockopt(fd.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
  if (!bind_to(fd.get(), address_, port)) return -1;
  const int raw = fd.get();
  entries_.emplace(port, Entry{std::move(fd), 1});
  return raw;
}

void SendSockets::release(std::uint16_t port) {
  const auto found = entries_.find(port);
  if (found != entries_.end() && --found->second.users == 0) entries_.erase(found);
}

SendResult send_batch(int fd, std::uint32_t address, std::uint16_t port, std::span<iovec> pieces,
                      std::uint16_t segment_bytes) {
  sockaddr_in target = socket_address(address, port);
  msghdr message{};
  message.msg_name = &target;
  message.msg_namelen = sizeof target;
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
  if (::sendmsg(fd, &message, MSG_NOSIGNAL) >= 0) return SendResult::kSent;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS ? SendResult::kBusy : SendResult::kFailed;
}

}  // namespace paralet
