// SPDX-License-Identifier: Apache-2.0
#include "verbs/routes.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "wire/wire.hpp"

namespace paralet::verbs {

std::uint32_t Routes::path_mtu_to(const IpAddress& remote, std::uint32_t most) const {
  const auto mtu = ask_route_({.address = own_}, {.address = remote, .port = wire::kRocePort});
  return mtu ? std::min(most, wire::largest_path_mtu(*mtu, !own_.is_ipv4())) : most;
}

std::optional<std::uint32_t> Routes::narrower(const IpAddress& remote, std::uint32_t path_mtu) {
  const std::uint32_t fitting = path_mtu_to(remote, path_mtu);
  if (fitting == path_mtu) return std::nullopt;
  std::uint32_t& said = said_[remote];
  if (fitting != std::exchange(said, fitting)) {
    log_("the route to " + format_address(remote) + " takes only shorter packets now: lanes go over to path MTU " +
         std::to_string(fitting) + ", which costs throughput");
  }
  return fitting;
}

}  // namespace paralet::verbs
