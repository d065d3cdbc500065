// SPDX-License-Identifier: Apache-2.0
// Which destinations are asked for: those of the fabric.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "base/ip_address.hpp"

namespace paralet::pin {

/// A few prefixes, held without memory of their own.
class Networks {
 public:
  static constexpr std::size_t kMost = 16;

  /// Prefixes with a length, as in "10.0.0.0/8,fd00::/8", separated by commas. What is no prefix, and more than kMost
  /// of them, is left out. `paralet pin` refuses both beforehand.
  explicit Networks(std::string_view text);

  /// Whether an address is in one of them; without any, whether it is neither of this host alone (loopback), of one
  /// link (link-local), of several hosts (multicast, broadcast) nor unspecified.
  [[nodiscard]] bool has(const IpAddress& address) const;

 private:
  struct Prefix {
    IpAddress address;
    unsigned bits = 0;  ///< of 128; an IPv4 prefix is mapped
  };
  std::array<Prefix, kMost> prefixes_;
  std::size_t count_ = 0;
};

}  // namespace paralet::pin
