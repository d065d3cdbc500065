// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "prober/observation.hpp"
#include "wire/wire.hpp"

namespace paralet::prober {

inline constexpr std::size_t kPayloadBytes = wire::kBthBytes + 8 + wire::kIcrcBytes;
using Payload = std::array<std::byte, kPayloadBytes>;

/// The UDP payload of a probe: a BTH, eight bytes that nobody can guess, an ICRC. Switches see a RoCEv2 packet to a QP.
/// A receiver drops it for two reasons, each of which is enough: the P_Key is 0, which no partition has (IBTA 10.9.2),
/// and the ICRC is the complement of the right one. `nonce` is in the PSN too, so that a router that quotes the BTH
/// shows which probe it answers.
Payload payload_of(const Target& target, const Probe& probe, std::uint64_t nonce);

}  // namespace paralet::prober
