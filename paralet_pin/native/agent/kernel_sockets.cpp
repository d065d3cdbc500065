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
#include <vector>

namespace paralet::pin {
namespace {

constexpr std::uint32_t kAllStates = 0xFFF;
constexpr std::uint32_t kListen = 1U << 10;
constexpr std::uint32_t kTimeWait = 1U << 6;

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

KernelSockets::KernelSockets() : socket_(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG)) {
  if (!socket_.valid()) throw std::system_error(errno, std::generic_category(), "socket of NETLINK_SOCK_DIAG");
  const timeval second{.tv_sec = 1, .tv_usec = 0};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
}

bool KernelSockets::has(const Connection& connection) {
  DiagRequest request{};
  request.header = {.nlmsg_len = sizeof request,
                    .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                    .nlmsg_flags = NLM_F_REQUEST,
                    .nlmsg_seq = 0,
                    .nlmsg_pid = 0};
  request.body.sdiag_family = static_cast<__u8>(connection.remote.is_ipv4() ? AF_INET : AF_INET6);
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = kAllStates;
  request.body.id.idiag_sport = htons(connection.port);
  request.body.id.idiag_dport = htons(connection.remote_port);
  request.body.id.idiag_cookie[0] = request.body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  write_address(request.body.id.idiag_src, connection.local);
  write_address(request.body.id.idiag_dst, connection.remote);
  if (::send(socket_.get(), &request, sizeof request, 0) != sizeof request) return false;
  alignas(nlmsghdr) std::array<char, 4096> room;
  const ssize_t got = ::recv(socket_.get(), room.data(), room.size(), 0);
  if (got < static_cast<ssize_t>(sizeof(nlmsghdr))) return false;
  nlmsghdr header{};
  std::memcpy(&header, room.data(), sizeof header);
  return header.nlmsg_type == SOCK_DIAG_BY_FAMILY;
}

template <typename Each>
void KernelSockets::dump(std::uint8_t protocol, std::uint32_t states, Each&& each) {
  for (const int family : {AF_INET, AF_INET6}) {
    DiagRequest request{};
    request.header = {.nlmsg_len = sizeof request,
                      .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                      .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
                      .nlmsg_seq = 0,
                      .nlmsg_pid = 0};
    request.body.sdiag_family = static_cast<__u8>(family);
    request.body.sdiag_protocol = protocol;
    request.body.idiag_states = states;
    if (protocol == IPPROTO_TCP) request.body.idiag_ext = 1U << (INET_DIAG_INFO - 1);
    if (::send(socket_.get(), &request, sizeof request, 0) != sizeof request) return;
    std::vector<char> room(std::size_t{1} << 16);
    for (bool more = true; more;) {
      const ssize_t got = ::recv(socket_.get(), room.data(), room.size(), 0);
      if (got <= 0) return;
      auto left = static_cast<unsigned>(got);
      for (const auto* header = reinterpret_cast<const nlmsghdr*>(room.data()); NLMSG_OK(header, left);
           header = NLMSG_NEXT(header, left)) {
        if (header->nlmsg_type == NLMSG_DONE || header->nlmsg_type == NLMSG_ERROR) {
          more = false;
          break;
        }
        if (header->nlmsg_len < NLMSG_LENGTH(sizeof(inet_diag_msg))) continue;
        each(*static_cast<const inet_diag_msg*>(NLMSG_DATA(header)), header->nlmsg_len);
      }
    }
  }
}

std::map<Connection, Traffic> KernelSockets::connections() {
  std::map<Connection, Traffic> found;
  dump(IPPROTO_TCP, kAllStates & ~(kListen | kTimeWait), [&](const inet_diag_msg& socket, std::uint32_t length) {
    const Connection connection{.local = address_of(socket.idiag_family, socket.id.idiag_src),
                                .port = ntohs(socket.id.idiag_sport),
                                .remote = address_of(socket.idiag_family, socket.id.idiag_dst),
                                .remote_port = ntohs(socket.id.idiag_dport)};
    Traffic traffic;
    auto left = static_cast<int>(length - NLMSG_LENGTH(sizeof socket));
    const auto* first = reinterpret_cast<const char*>(&socket) + NLMSG_ALIGN(sizeof socket);
    for (const auto* attribute = reinterpret_cast<const rtattr*>(first); RTA_OK(attribute, left);
         attribute = RTA_NEXT(attribute, left)) {
      if (attribute->rta_type != INET_DIAG_INFO) continue;
      tcp_info info{};
      std::memcpy(&info, RTA_DATA(attribute), std::min<std::size_t>(RTA_PAYLOAD(attribute), sizeof info));
      traffic = {.sent_bytes = info.tcpi_bytes_acked, .received_bytes = info.tcpi_bytes_received};
    }
    found.emplace(connection, traffic);
  });
  return found;
}

std::set<std::uint16_t> KernelSockets::datagram_ports() {
  std::set<std::uint16_t> found;
  dump(IPPROTO_UDP, kAllStates,
       [&](const inet_diag_msg& socket, std::uint32_t) { found.insert(ntohs(socket.id.idiag_sport)); });
  return found;
}

}  // namespace paralet::pin
