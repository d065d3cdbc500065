// SPDX-License-Identifier: Apache-2.0
// Wire formats: the payloads of SENDs over the QPs, which are receive advertisements, flowlet ends, eager messages, and
// what controls these. docs/protocol.md describes them for other implementations. All numbers are big-endian.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "backend/backend.hpp"

namespace paralet::handshake {

/// A receive buffer advertised to the sender ("clear to send"). The payload of a SEND on any QP of the peer is a
/// control record: advertisements, and where both sides send eagerly also asks and credits.
struct Advertisement {
  std::uint32_t connection = 0;  ///< the sender-side name of the connection
  std::uint32_t sequence = 0;    ///< by connection, from 0: advertisements may arrive out of order
  std::uint32_t tag = 0;
  std::uint16_t slot = 0;                          ///< names the receive in immediate data and flowlet ends
  std::array<std::uint32_t, kMaxMembers> rkeys{};  ///< by member
  std::uint32_t eager = 0;  ///< eager messages and asks of the connection that had been taken before
  std::uint64_t address = 0;
  std::uint64_t length = 0;
};
inline constexpr std::size_t kAdvertisementBytes = 40;
inline constexpr std::size_t kFusedAdvertisementBytes = 52;  ///< with the rkeys of the members 1, 2 and 3
/// Of 40 bytes, with the rkey of member 0; between fused devices of 52.
std::array<std::byte, kFusedAdvertisementBytes> encode(const Advertisement& advertisement, bool fused);
/// From its 40 or 52 bytes.
std::optional<Advertisement> decode_advertisement(std::span<const std::byte> bytes);
inline std::size_t advertisement_bytes(bool fused) { return fused ? kFusedAdvertisementBytes : kAdvertisementBytes; }

/// The end of a flowlet: the payload of a SEND that follows the flowlet's WRITE on the same QP, in place of immediate
/// data.
struct FlowletEnd {
  std::uint16_t slot = 0;   ///< of the receive
  std::uint16_t count = 0;  ///< flowlets in the message
  std::uint32_t bytes = 0;  ///< in this flowlet
};
inline constexpr std::size_t kFlowletEndBytes = 12;
std::array<std::byte, kFlowletEndBytes> encode(const FlowletEnd& end);
std::optional<FlowletEnd> decode_flowlet_end(std::span<const std::byte> bytes);

/// A short message that goes without an advertisement, or in place of the one it was matched with: this header, and the
/// message up to the end of the SEND.
struct EagerMessage {
  std::uint32_t connection = 0;  ///< the receiver's name
  std::uint32_t number = 0;      ///< by connection, from 0, asks included: they may arrive out of order
  std::uint32_t advertised = 0;  ///< no receive with a lower sequence number is meant
  std::uint32_t tag = 0;
};
inline constexpr std::size_t kEagerHeaderBytes = 20;
std::array<std::byte, kEagerHeaderBytes> encode(const EagerMessage& message);
/// From the first bytes of a SEND.
std::optional<EagerMessage> decode_eager_message(std::span<const std::byte> bytes);

/// A send waits for a receive, whose advertisement the receiver holds back while messages come eagerly.
struct Ask {
  std::uint32_t connection = 0;  ///< the receiver's name
  std::uint32_t number = 0;      ///< among the eager messages
};
inline constexpr std::size_t kAskBytes = 12;
std::array<std::byte, kAskBytes> encode(const Ask& ask);
std::optional<Ask> decode_ask(std::span<const std::byte> bytes);

/// What the receiver has done with eager messages and asks, modulo 2^32.
struct EagerCredit {
  std::uint32_t connection = 0;  ///< the sender's name
  std::uint32_t taken = 0;       ///< taken in order
  std::uint32_t done = 0;        ///< of these, asks and messages that have met their receive: none is kept for them
  std::uint32_t advertised = 0;  ///< receives advertised so far
};
inline constexpr std::size_t kEagerCreditBytes = 20;
std::array<std::byte, kEagerCreditBytes> encode(const EagerCredit& credit);
std::optional<EagerCredit> decode_eager_credit(std::span<const std::byte> bytes);

/// Immediate data of a flowlet: the receive's slot and the number of flowlets in the message.
inline std::uint32_t immediate(std::uint16_t slot, std::uint32_t count) {
  return (static_cast<std::uint32_t>(slot) << 16) | count;
}

}  // namespace paralet::handshake
