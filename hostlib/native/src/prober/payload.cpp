// SPDX-License-Identifier: Apache-2.0
#include "prober/payload.hpp"

#include <span>

#include "wire/icrc.hpp"

namespace paralet::prober {

Payload payload_of(const Target& target, const Probe& probe, std::uint64_t nonce) {
  Payload out{};
  out[0] = static_cast<std::byte>(wire::Opcode::kSendOnly);
  wire::put_u32(out.data() + 4, probe.qpn & wire::kPsnMask);
  wire::put_u32(out.data() + 8, static_cast<std::uint32_t>(nonce) & wire::kPsnMask);
  wire::put_u64(out.data() + wire::kBthBytes, nonce);
  const UdpFlow flow{.src_address = target.from,
                     .dst_address = target.to,
                     .src_port = probe.source_port,
                     .dst_port = target.destination_port};
  const auto covered = std::span<const std::byte>(out).first(kPayloadBytes - wire::kIcrcBytes);
  put_icrc(out.data() + covered.size(),
           ~icrc(flow, 0, covered.first(wire::kBthBytes), covered.subspan(wire::kBthBytes)));
  return out;
}

}  // namespace paralet::prober
