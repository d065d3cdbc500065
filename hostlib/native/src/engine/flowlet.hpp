// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.hpp"

namespace paralet {

/// ParaLet, equation 1: expected slowdown of N = `hosts` senders with m parallel flowlets each, 1 + Phi^-1(1 - 1/N) /
/// sqrt(m). Too low for small m, where the normal distribution approximates the binomial poorly.
double slowdown(unsigned m, double hosts);

/// The smallest m whose slowdown (equation 1) does not exceed `target` > 1.
unsigned lanes_for(double target, double hosts);

/// ParaLet, section 5.2: S = 4 BDP / m in bytes, rounded up to whole packets, at least one.
std::uint64_t flowlet_bytes(double bdp_bytes, unsigned m, std::uint32_t path_mtu);

/// What S depends on, in the order of precedence.
struct FlowletRule {
  std::optional<std::uint64_t> bytes;  ///< the option
  double line_rate_bps = 0;            ///< the option, 0: none
  double port_rate_bps = 0;            ///< of the NIC's port, 0: unknown
  Nanos rtt = 0;                       ///< of the idle network, 0: not measured yet
  unsigned lanes = 1;
  unsigned shards = 1;              ///< of the device
  std::uint64_t message_bytes = 0;  ///< used with several shards
  std::uint32_t path_mtu = 1024;    ///< payload bytes
};

/// S in bytes: the option, else 4 BDP / m with the line rate or the port's rate. By the port's rate S is between 16
/// KiB, below which the host and not the link limits the rate, and 2 MiB. It is 2 MiB where no rate is known, and where
/// there is only the port's rate and no round trip; with several shards less, so that each gets a part of the message.
std::uint64_t flowlet_size(const FlowletRule& rule);

/// A message cut into flowlets. Their number has 16 bits on the wire, so very large messages get larger flowlets.
struct Flowlets {
  static constexpr std::uint64_t kMaxCount = 65535;
  static constexpr std::uint64_t kMaxSize = std::uint64_t{1} << 31;  ///< bytes in an RDMA WRITE (IBTA 9.4.3)

  /// `size_bytes` > 0 is S; it is limited to kMaxSize and rounded up to whole packets.
  Flowlets(std::uint64_t message_bytes, std::uint64_t size_bytes, std::uint32_t path_mtu);

  std::uint64_t message_bytes;
  std::uint64_t size_bytes;  ///< of every flowlet but the last
  std::uint32_t count;       ///< at least 1: an empty message is one empty flowlet

  [[nodiscard]] std::uint64_t offset(std::uint32_t index) const { return index * size_bytes; }
  [[nodiscard]] std::uint64_t length(std::uint32_t index) const {
    return index + 1 < count ? size_bytes : message_bytes - offset(index);
  }
};

}  // namespace paralet
