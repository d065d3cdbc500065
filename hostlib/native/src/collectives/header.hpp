// SPDX-License-Identifier: Apache-2.0
// What the ranks of a group tell each other beside data. All numbers are big-endian.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "wire/wire.hpp"

namespace paralet::collectives {

/// Tags of messages, by their first bits. Bulk data of a collective has its sequence number as tag, so data of
/// different operations never meets.
inline constexpr std::uint32_t kPointToPointTag = 0x80000000U;  ///< plus the caller's tag
inline constexpr std::uint32_t kSequenceTags = 0x7fffffffU;     ///< mask of sequence numbers in tags
inline constexpr std::uint32_t kHelloTag = 1;  ///< these three are on the connection of mailboxes or before any data
inline constexpr std::uint32_t kMailTag = 2;
inline constexpr std::uint32_t kAnnounceTag = 3;

/// The first message on a connection: who connects.
struct Hello {
  static constexpr std::size_t kBytes = 16;
  std::uint32_t size = 0;
  std::uint32_t rank = 0;
  std::uint32_t channel = 0;  ///< which of the link's connections
};

/// Identifies a collective. All ranks must agree on it.
struct Identity {
  std::uint32_t sequence = 0;
  std::uint8_t kind = 0;  ///< Kind of operation.hpp
  std::uint8_t type = 0;  ///< DataType, 0 without
  std::uint8_t op = 0;    ///< ReduceOp, 0 without
  std::uint32_t root = 0;
  bool operator==(const Identity&) const = default;
};

/// Goes before each short message, and before the first message of an operation to a peer.
struct Header {
  static constexpr std::size_t kBytes = 32;
  Identity identity;
  std::uint64_t stream_bytes = 0;  ///< all that the sender sends to this peer in the operation
};

/// A send that waits for its receive.
struct Announcement {
  static constexpr std::size_t kBytes = 16;
  std::uint32_t tag = 0;
  std::uint64_t bytes = 0;
};

/// In place of an announcement, before a rank closes its links: why its group has failed.
struct Notice {
  static constexpr std::size_t kMostBytes = 512;
};

inline constexpr std::uint32_t kMagic = 0x504c4331;        // "PLC1"
inline constexpr std::uint32_t kNoticeMagic = 0x504c434e;  // "PLCN"

inline std::array<std::byte, Hello::kBytes> encode(const Hello& hello) {
  std::array<std::byte, Hello::kBytes> out{};
  wire::put_u32(out.data(), kMagic);
  wire::put_u32(out.data() + 4, hello.size);
  wire::put_u32(out.data() + 8, hello.rank);
  wire::put_u32(out.data() + 12, hello.channel);
  return out;
}

inline std::optional<Hello> decode_hello(std::span<const std::byte> bytes) {
  if (bytes.size() != Hello::kBytes || wire::get_u32(bytes.data()) != kMagic) return std::nullopt;
  return Hello{wire::get_u32(bytes.data() + 4), wire::get_u32(bytes.data() + 8), wire::get_u32(bytes.data() + 12)};
}

inline std::array<std::byte, Header::kBytes> encode(const Header& header) {
  std::array<std::byte, Header::kBytes> out{};
  wire::put_u32(out.data(), kMagic);
  wire::put_u32(out.data() + 4, header.identity.sequence);
  out[8] = static_cast<std::byte>(header.identity.kind);
  out[9] = static_cast<std::byte>(header.identity.type);
  out[10] = static_cast<std::byte>(header.identity.op);
  wire::put_u32(out.data() + 12, header.identity.root);
  wire::put_u64(out.data() + 16, header.stream_bytes);
  return out;
}

/// From the beginning of a message.
inline std::optional<Header> decode_header(std::span<const std::byte> bytes) {
  if (bytes.size() < Header::kBytes || wire::get_u32(bytes.data()) != kMagic) return std::nullopt;
  return Header{.identity = {.sequence = wire::get_u32(bytes.data() + 4),
                             .kind = std::to_integer<std::uint8_t>(bytes[8]),
                             .type = std::to_integer<std::uint8_t>(bytes[9]),
                             .op = std::to_integer<std::uint8_t>(bytes[10]),
                             .root = wire::get_u32(bytes.data() + 12)},
                .stream_bytes = wire::get_u64(bytes.data() + 16)};
}

inline std::array<std::byte, Announcement::kBytes> encode(const Announcement& announcement) {
  std::array<std::byte, Announcement::kBytes> out{};
  wire::put_u32(out.data(), kMagic);
  wire::put_u32(out.data() + 4, announcement.tag);
  wire::put_u64(out.data() + 8, announcement.bytes);
  return out;
}

inline std::optional<Announcement> decode_announcement(std::span<const std::byte> bytes) {
  if (bytes.size() != Announcement::kBytes || wire::get_u32(bytes.data()) != kMagic) return std::nullopt;
  return Announcement{wire::get_u32(bytes.data() + 4), wire::get_u64(bytes.data() + 8)};
}

/// Cuts a longer text.
inline std::vector<std::byte> encode_notice(std::string_view text) {
  constexpr std::size_t kHead = 4;
  text = text.substr(0, Notice::kMostBytes - kHead);
  std::vector<std::byte> out(kHead + text.size());
  wire::put_u32(out.data(), kNoticeMagic);
  std::ranges::copy(std::as_bytes(std::span(text)), out.begin() + kHead);
  return out;
}

/// The text.
inline std::optional<std::string> decode_notice(std::span<const std::byte> bytes) {
  if (bytes.size() < 4 || wire::get_u32(bytes.data()) != kNoticeMagic) return std::nullopt;
  return std::string(reinterpret_cast<const char*>(bytes.data()) + 4, bytes.size() - 4);
}

}  // namespace paralet::collectives
