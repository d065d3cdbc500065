// SPDX-License-Identifier: Apache-2.0
// Which interfaces become devices.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/interfaces.hpp"

namespace paralet::settings {

/// "eth0:1" is another address of eth0.
std::string without_label(const std::string& name);

/// A list of interface names in the syntax of NCCL_SOCKET_IFNAME: prefixes; exact names after '='; exclusions after
/// '^'.
class NameFilter {
 public:
  /// Nothing when the list has no name.
  static std::optional<NameFilter> parse(std::string_view text);
  [[nodiscard]] bool admits(std::string_view name) const;
  [[nodiscard]] const std::string& text() const { return text_; }  ///< as it was given

 private:
  std::string text_;
  bool exclude_ = false;
  bool exact_ = false;
  std::vector<std::string> names_;
};

/// The user's choice of interfaces. Without names and addresses the choice is that of NCCL's socket transport.
struct Selection {
  std::optional<NameFilter> names;
  std::vector<IpAddress> addresses = {};  ///< devices, in this order
  /// The family of the addresses of interfaces; nothing: the one that `select` chooses.
  std::optional<bool> ipv4 = {};
  std::optional<bool> rather_ipv4 = {};  ///< the family that `select` chooses if an interface has such an address
};

/// One interface per device, each with one address unless addresses are given: the one that reaches farthest, of these
/// the kernel's first. All are of one family: the one asked for, else that of the address that reaches farthest, IPv4
/// if both do. Interfaces that are down are left out. Empty when none fits.
std::vector<Interface> select(const std::vector<Interface>& all, const Selection& selection);

/// The addresses that the device's interface has beside the one that was selected, "" when there are none.
std::string other_addresses(const std::vector<Interface>& all, const Interface& device);

}  // namespace paralet::settings
