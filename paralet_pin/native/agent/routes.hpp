// SPDX-License-Identifier: Apache-2.0
// From which of this host's addresses packets to another host leave. The routing table is asked once for each host, and
// again when anything of it has changed.
#pragma once

#include <map>
#include <optional>

#include "base/file_descriptor.hpp"
#include "base/ip_address.hpp"

namespace paralet::pin {

class Routes {
 public:
  /// Throws std::system_error when the kernel does not tell of changes (rtnetlink(7)). No privilege is needed.
  Routes();

  /// Nothing where no route leads there.
  [[nodiscard]] std::optional<IpAddress> source(const IpAddress& remote);
  /// Is readable when routes, rules, addresses or interfaces have changed. Then call `forget`.
  [[nodiscard]] int changes() const { return changes_.get(); }
  void forget();

 private:
  static constexpr std::size_t kMost = 65536;

  FileDescriptor changes_;
  std::map<IpAddress, IpAddress> sources_;  ///< by the other host
};

}  // namespace paralet::pin
