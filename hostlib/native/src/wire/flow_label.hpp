// SPDX-License-Identifier: Apache-2.0
// The mapping from a QP's flow label to its UDP source port that RoCEv2 NICs use, as in rdma-core
// (ibv_flow_label_to_udp_sport) and the kernel (rdma_flow_label_to_udp_sport), and its inverse.
#pragma once

#include <cstdint>

namespace paralet {

constexpr std::uint16_t kFirstRocePort = 0xC000;

/// The port of a label of 20 bits, not 0: the upper 6 bits are XORed into the lower 14.
constexpr std::uint16_t port_of_flow_label(std::uint32_t label) {
  return static_cast<std::uint16_t>(((label & 0x3FFF) ^ ((label & 0xFC000) >> 14)) | kFirstRocePort);
}

/// A label that gives `port`, which is at least kFirstRocePort. Never 0, because 0 means that no label is set.
constexpr std::uint32_t flow_label_of_port(std::uint16_t port) {
  const std::uint32_t low = port & 0x3FFFU;
  return low != 0 ? low : 0x4001;
}

static_assert(port_of_flow_label(flow_label_of_port(0xC000)) == 0xC000);
static_assert(port_of_flow_label(flow_label_of_port(0xC001)) == 0xC001);
static_assert(port_of_flow_label(flow_label_of_port(0xFFFF)) == 0xFFFF);
static_assert(port_of_flow_label(0x2ABC) == 60092);

}  // namespace paralet
