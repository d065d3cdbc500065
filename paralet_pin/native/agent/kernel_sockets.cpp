// SPDX-License-Identifier: Apache-2.0
#include "kernel_sockets.hpp"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/socket_address.hpp"

namespace paralet::pin {
namespace {

constexpr std::uint32_t kAllStates = 0xFFF;
// States of TCP, by the names of netinet/tcp.h, which cannot be included beside linux/tcp.h.
constexpr unsigned kSynSent = 2;
constexpr unsigned kTimeWait = 6;
constexpr unsigned kListen = 10;
constexpr unsigned kBoundInactive = 13;  // Linux 6.8; older headers lack it

struct DiagRequest {
  nlmsghdr header;
  inet_diag_req_v2 body;
};

IpAddress address_of(std::uint8_t family, const __be32* words) {
  if (family == AF_INET) return IpAddress(ntohl(words[0]));
  IpAddress::Bytes bytes{};
  std::memcpy(bytes.data(), words, bytes.size());
  return IpAddress(bytes);
}

void write_address(__be32* words, const IpAddress& address) {
  if (address.is_ipv4()) {
    words[0] = htonl(address.ipv4());
  } else {
    std::memcpy(words, address.bytes().data(), address.bytes().size());
  }
}

}  // namespace

bool is_taken(const IpAddress& local, std::uint16_t port) {
  const FileDescriptor probe(::socket(family_of(local), SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress at(local, port);
  return probe.valid() && ::bind(probe.get(), at.get(), at.length()) != 0 && errno == EADDRINUSE;
}

KernelSockets::KernelSockets() : socket_(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG)) {
  if (!socket_.valid()) throw std::system_error(errno, std::generic_category(), "socket of NETLINK_SOCK_DIAG");
  const timeval second{.tv_sec = 1, .tv_usec = 0};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
}

template <typename Each>
int KernelSockets::ask(const inet_diag_req_v2& body, bool all, Each&& each) {
  const DiagRequest request{
      .header = {.nlmsg_len = sizeof request,
                 .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                 .nlmsg_flags = static_cast<std::uint16_t>(all ? NLM_F_REQUEST | NLM_F_DUMP : NLM_F_REQUEST),
                 .nlmsg_seq = ++number_,
                 .nlmsg_pid = 0},
      .body = body};
  if (::send(socket_.get(), &request, sizeof request, 0) != sizeof request) return EIO;
  for (;;) {
    const ssize_t got = ::recv(socket_.get(), room_.data(), room_.size(), MSG_TRUNC);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || static_cast<std::size_t>(got) > room_.size()) return EIO;
    auto left = static_cast<unsigned>(got);
    for (const auto* header = reinterpret_cast<const nlmsghdr*>(room_.data()); NLMSG_OK(header, left);
         header = NLMSG_NEXT(header, left)) {
      if (header->nlmsg_seq != number_) continue;
      if (header->nlmsg_type == NLMSG_DONE || header->nlmsg_type == NLMSG_ERROR) {
        int error = 0;
        if (header->nlmsg_len >= NLMSG_LENGTH(sizeof error)) std::memcpy(&error, NLMSG_DATA(header), sizeof error);
        return -error;
      }
      if (header->nlmsg_len < NLMSG_LENGTH(sizeof(inet_diag_msg))) continue;
      each(*static_cast<const inet_diag_msg*>(NLMSG_DATA(header)), header->nlmsg_len);
      if (!all) return 0;
    }
  }
}

template <typename Each>
bool KernelSockets::dump(std::uint8_t protocol, std::uint32_t states, Each&& each) {
  for (const int family : {AF_INET, AF_INET6}) {
    inet_diag_req_v2 body{};
    body.sdiag_family = static_cast<__u8>(family);
    body.sdiag_protocol = protocol;
    body.idiag_states = states;
    if (protocol == IPPROTO_TCP) body.idiag_ext = 1U << (INET_DIAG_INFO - 1);
    if (ask(body, true, each) != 0) return false;
  }
  return true;
}

Found KernelSockets::find(const Connection& connection) {
  inet_diag_req_v2 body{};
  body.sdiag_family = static_cast<__u8>(connection.remote.is_ipv4() ? AF_INET : AF_INET6);
  body.sdiag_protocol = IPPROTO_TCP;
  body.idiag_states = kAllStates;
  body.id.idiag_sport = htons(connection.port);
  body.id.idiag_dport = htons(connection.remote_port);
  body.id.idiag_cookie[0] = body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  write_address(body.id.idiag_src, connection.local);
  write_address(body.id.idiag_dst, connection.remote);
  Found found = Found::kUnknown;
  const int error = ask(body, false, [&](const inet_diag_msg& socket, std::uint32_t) {
    found = socket.idiag_state == kTimeWait ? Found::kTimeWait : Found::kSocket;
  });
  return error == ENOENT ? Found::kNone : found;
}

std::vector<Found> KernelSockets::find_all(const std::vector<Sought>& sought) {
  std::vector<Found> found;
  for (const auto& [connection, may_retry] : sought) {
    const Found state = find(connection);
    const bool bound = state == Found::kNone && may_retry && is_taken(connection.local, connection.port);
    found.push_back(bound ? Found::kBound : state);
  }
  if (std::ranges::find(found, Found::kBound) == found.end()) return found;
  // Listed only now, because a socket may be refused while others are looked for. One may also try again before the
  // list: it is found then.
  const auto bound = unconnected();
  if (!bound) return found;
  for (std::size_t number = 0; number < found.size(); ++number) {
    const Connection& connection = sought[number].connection;
    const bool listed =
        bound->contains({connection.local, connection.port}) || bound->contains({IpAddress(), connection.port});
    if (found[number] == Found::kBound && !listed) found[number] = find(connection);
  }
  return found;
}

std::optional<std::map<Connection, Traffic>> KernelSockets::connections() {
  std::map<Connection, Traffic> found;
  const bool all =
      dump(IPPROTO_TCP, kAllStates & ~(1U << kListen | 1U << kTimeWait),
           [&](const inet_diag_msg& socket, std::uint32_t length) {
             const Connection connection{.local = address_of(socket.idiag_family, socket.id.idiag_src),
                                         .port = ntohs(socket.id.idiag_sport),
                                         .remote = address_of(socket.idiag_family, socket.id.idiag_dst),
                                         .remote_port = ntohs(socket.id.idiag_dport)};
             Traffic traffic{.connected = socket.idiag_state != kSynSent};
             auto left = static_cast<int>(length - NLMSG_LENGTH(sizeof socket));
             const auto* first = reinterpret_cast<const char*>(&socket) + NLMSG_ALIGN(sizeof socket);
             for (const auto* attribute = reinterpret_cast<const rtattr*>(first); RTA_OK(attribute, left);
                  attribute = RTA_NEXT(attribute, left)) {
               if (attribute->rta_type != INET_DIAG_INFO) continue;
               tcp_info info{};
               std::memcpy(&info, RTA_DATA(attribute), std::min<std::size_t>(RTA_PAYLOAD(attribute), sizeof info));
               // The kernel counts the SYN as a byte (`tcp_info` of Linux: "bytes_acked" is the advance of SND.UNA).
               const std::uint64_t sent = info.tcpi_bytes_acked;
               traffic.sent_bytes = sent == 0 ? 0 : sent - 1;
               traffic.received_bytes = info.tcpi_bytes_received;
               traffic.timeouts = info.tcpi_retransmits;
             }
             found.emplace(connection, traffic);
           });
  if (!all) return std::nullopt;
  return found;
}

std::optional<std::set<LocalPort>> KernelSockets::unconnected() {
  std::set<LocalPort> found;
  const bool all = dump(IPPROTO_TCP, 1U << kBoundInactive, [&](const inet_diag_msg& socket, std::uint32_t) {
    const IpAddress local = address_of(socket.idiag_family, socket.id.idiag_src);
    found.emplace(local == IpAddress(0) ? IpAddress() : local, ntohs(socket.id.idiag_sport));
  });
  if (!all) return std::nullopt;
  return found;
}

std::optional<std::set<std::uint16_t>> KernelSockets::datagram_ports() {
  std::set<std::uint16_t> found;
  const bool all = dump(IPPROTO_UDP, kAllStates, [&](const inet_diag_msg& socket, std::uint32_t) {
    found.insert(ntohs(socket.id.idiag_sport));
  });
  if (!all) return std::nullopt;
  return found;
}

}  // namespace paralet::pin
