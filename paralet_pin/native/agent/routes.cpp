// SPDX-License-Identifier: Apache-2.0
#include "routes.hpp"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <system_error>

#include "base/socket_address.hpp"

namespace paralet::pin {
namespace {

constexpr std::uint16_t kDiscard = 9;  // any port: nothing is sent

constexpr std::uint32_t group(unsigned number) { return std::uint32_t{1} << (number - 1); }
// A route may go without a word of its own when its interface goes down.
constexpr std::uint32_t kChanges = group(RTNLGRP_LINK) | group(RTNLGRP_IPV4_IFADDR) | group(RTNLGRP_IPV6_IFADDR) |
                                   group(RTNLGRP_IPV4_ROUTE) | group(RTNLGRP_IPV6_ROUTE) | group(RTNLGRP_IPV4_RULE) |
                                   group(RTNLGRP_IPV6_RULE) | group(RTNLGRP_NEXTHOP);

}  // namespace

Routes::Routes() : changes_(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE)) {
  sockaddr_nl own{};
  own.nl_family = AF_NETLINK;
  own.nl_groups = kChanges;
  if (!changes_.valid() || ::bind(changes_.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0) {
    throw std::system_error(errno, std::generic_category(), "socket of NETLINK_ROUTE");
  }
}

std::optional<IpAddress> Routes::source(const IpAddress& remote) {
  if (const auto found = sources_.find(remote); found != sources_.end()) return found->second;
  const FileDescriptor probe(::socket(family_of(remote), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const SocketAddress to(remote, kDiscard);
  SocketAddress from;
  if (!probe.valid() || ::connect(probe.get(), to.get(), to.length()) != 0 ||
      ::getsockname(probe.get(), from.get(), from.length_place()) != 0) {
    return std::nullopt;
  }
  if (sources_.size() >= kMost) sources_.clear();
  return sources_.emplace(remote, from.address()).first->second;
}

void Routes::forget() {
  sources_.clear();
  // What has changed does not matter. An error, ENOBUFS, tells that some messages are lost.
  std::byte ignored{};
  while (::recv(changes_.get(), &ignored, sizeof ignored, 0) >= 0 || errno == ENOBUFS) continue;
}

}  // namespace paralet::pin
