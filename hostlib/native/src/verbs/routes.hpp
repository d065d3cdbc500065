// SPDX-License-Identifier: Apache-2.0
// What the routes to peers take. The NIC takes the kernel's route, but its port knows neither the route's metric `mtu`
// nor the MTU of another interface that the route may go through, and says nothing when its packets are too long.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "base/ip_address.hpp"
#include "verbs/verbs_options.hpp"

namespace paralet::verbs {

class Routes {
 public:
  explicit Routes(const VerbsOptions& options)
      : own_(options.address), ask_route_(options.ask_route), log_(options.log) {}
  /// Payload bytes per packet to a peer, at most `most`, which holds where no route is known.
  [[nodiscard]] std::uint32_t path_mtu_to(const IpAddress& remote, std::uint32_t most) const;
  /// The path MTU that fits, if the route takes no packets of `path_mtu` any more. Says so in the log, once.
  std::optional<std::uint32_t> narrower(const IpAddress& remote, std::uint32_t path_mtu);

 private:
  const IpAddress own_;
  const decltype(VerbsOptions::ask_route) ask_route_;
  const Log log_;
  std::map<IpAddress, std::uint32_t> said_;  ///< the last path MTU that the log has, by peer
};

}  // namespace paralet::verbs
