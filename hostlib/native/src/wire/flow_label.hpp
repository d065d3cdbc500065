// SPDX-License-Identifier: Apache-2.0
// How a RoCEv2 NIC makes a QP's UDP source port of its flow label, as rdma-core (ibv_flow_label_to_udp_sport) and the
// kernel (rdma_flow_label_to_udp_sport) do it, and the way back.
#pragma once

#include <cstdint>

namespace paralet {

constexpr std::uint16_t kFirstRocePort = 0xC000;

/// The port of a label of 20 bits that is set: the upper 6 bits folded into the lower 14.
constexpr std::uint16_t port_of_flow_label(std::uint32_t label) {
  return static_cast<std::uint16_t>(((label & 0x3FFF) ^ ((label & 0xFC000) >> 14)) | kFirstRocePort);
}

/// A label of the port, which is at least kFirstRocePort; never 0, for that means that none is set.
constexpr std::uint32_t flow_label_of_port(std::uint16_t port) {
  const std::uint32_t low = port & 0x3FFFU;
  return low != 0 ? low : 0x4001;
}

static_assert(port_of_flow_label(flow_label_of_port(0xC000)) == 0xC000);
static_assert(port_of_flow_label(flow_label_of_port(0xC001)) == 0xC001);
static_assert(port_of_flow_label(flow_label_of_port(0xFFFF)) == 0xFFFF);
static_assert(port_of_flow_label(0x2ABC) == 60092);

}  // namespace paralet
