// SPDX-License-Identifier: Apache-2.0
// The invariant CRC of RoCEv2 (IBTA annex A17.3.3): CRC-32 over the packet from the IP header on, with the fields that
// switches may change masked to ones: IPv4 type of service, TTL and checksum; IPv6 traffic class, flow label and hop
// limit; UDP checksum; BTH resv8a. As in Linux's drivers/infiniband/sw/rxe/rxe_icrc.c.
//
// The ICRC covers the IPv4 identification, which a UDP socket neither sets nor sees. Linux's choice is known: an
// unconnected socket with path MTU discovery sends DF with identification 0, and segment i of a UDP_SEGMENT batch
// carries i. The receiver recovers the identification: CRC-32 is linear, so the computed and the received value differ
// by L(identification), a linear map of 16 dimensions that is inverted once per packet length. IPv6 has no
// identification: there the ICRC is known.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ip_address.hpp"

namespace paralet {

/// Both addresses are of one family. Ports in host byte order.
struct UdpFlow {
  IpAddress src_address;
  IpAddress dst_address;
  std::uint16_t src_port = 0;
  std::uint16_t dst_port = 0;
};

/// ICRC of a packet given in pieces: `header` starts with the BTH; `pad` zero bytes follow the payload. `ip_id` is of
/// IPv4 only.
std::uint32_t icrc(const UdpFlow& flow, std::uint16_t ip_id, std::span<const std::byte> header,
                   std::span<const std::byte> payload, std::uint8_t pad = 0);

/// Writes an ICRC as it is sent: little-endian, unlike all other fields.
void put_icrc(std::byte* out, std::uint32_t icrc);

/// Checks received packets.
class IcrcVerifier {
 public:
  /// `datagram` is BTH to ICRC. `likely_id` is tried first, then all identifications up to `max_id`. Each bit of max_id
  /// costs one of the 32 bits of the check.
  bool verify(const UdpFlow& flow, std::span<const std::byte> datagram, std::uint16_t likely_id, std::uint16_t max_id);
  /// The same for a packet in pieces. `icrc` holds its last four bytes.
  bool verify(const UdpFlow& flow, std::span<const std::byte> header, std::span<const std::byte> payload,
              std::span<const std::byte> icrc, std::uint16_t likely_id, std::uint16_t max_id);

 private:
  /// Inverse of identification -> CRC difference for one packet length, in echelon form.
  struct Inverse {
    std::size_t length = 0;  // 0: unused
    std::array<std::uint32_t, 16> vector{};
    std::array<std::uint16_t, 16> id{};
    std::array<std::uint32_t, 16> pivot{};
  };
  const Inverse& inverse(std::size_t length);
  std::array<Inverse, 64> cache_{};
};

}  // namespace paralet
