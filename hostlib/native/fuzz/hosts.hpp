// SPDX-License-Identifier: Apache-2.0
// The hosts of the fuzzer of peers: their addresses, and the options of honest devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/clock.hpp"
#include "engine/options.hpp"

namespace paralet::fuzz {

inline constexpr std::uint32_t kVictim = 1;  // the host part of its address, 127.90.MEMBERS.16 * MEMBER + 1
inline constexpr std::uint32_t kHonest = 2;
inline constexpr std::uint32_t kHostile = 3;
inline constexpr unsigned kMostMembers = 2;
inline constexpr std::uint32_t kPathMtu = 1024;
inline constexpr std::size_t kLanes = 2;

/// The address of a host's NIC `member` on the stage for devices with so many members.
constexpr std::uint32_t address_of(std::uint32_t host, unsigned members, unsigned member = 0) {
  return 0x7F5A0000 + members * 0x100 + member * 0x10 + host;
}

inline DeviceOptions device_options(std::uint32_t host, unsigned members) {
  DeviceOptions out;
  out.address = address_of(host, members);
  for (unsigned i = 1; i < members; ++i) out.fused_with.emplace_back(address_of(host, members, i));
  out.policy.lanes = kLanes;
  out.path_mtu = kPathMtu;
  out.idle_peer = 10 * kMillisecond;
  out.log = [](const std::string&) {};
  return out;
}

}  // namespace paralet::fuzz
