// SPDX-License-Identifier: Apache-2.0
// What goes over the TCP connections of lanes (docs/tcp.md). All numbers are big-endian. Nothing here touches a socket.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "backend/work.hpp"

namespace paralet::tcp {

/// The first bytes of a connection, from the QP that sends on it. QPNs and tokens are those of the handshake, so that
/// only the peer knows all of them.
struct Hello {
  std::uint32_t to_qpn = 0;
  std::uint32_t to_token = 0;
  std::uint32_t from_qpn = 0;
  std::uint32_t from_token = 0;
  std::uint32_t attempt = 0;  ///< of the sending QP, from 1: a later connection replaces an earlier one
  bool operator==(const Hello&) const = default;
};
inline constexpr std::size_t kHelloBytes = 24;
std::array<std::byte, kHelloBytes> encode(const Hello& hello);
std::optional<Hello> decode_hello(std::span<const std::byte, kHelloBytes> bytes);

/// What the receiver says on a connection.
struct Notice {
  enum class Kind : std::uint8_t {
    kWelcome,  ///< the connection has the QP: the sender goes on with frame `frames`
    kAnswer,   ///< to a ping: the device has taken the frames before `frames`
    kRefused,  ///< frame `frames` was refused for the reason `status`; the connection ends
  };
  Kind kind = Kind::kWelcome;
  Status status = Status::kSuccess;
  std::uint64_t frames = 0;  ///< of the QP that have arrived completely, over all its connections
  bool operator==(const Notice&) const = default;
};
inline constexpr std::size_t kNoticeBytes = 16;
std::array<std::byte, kNoticeBytes> encode(const Notice& notice);
/// nullopt also for a reason that a receiver cannot have.
std::optional<Notice> decode_notice(std::span<const std::byte, kNoticeBytes> bytes);

/// The option of QPs that answer pings (Ece::options). A ping is a WRITE of no bytes.
inline constexpr std::uint32_t kAnswersPings = 16;

/// A work request on the wire; `length` bytes of payload follow.
struct Frame {
  WorkKind kind = WorkKind::kWrite;
  std::uint32_t length = 0;
  std::uint32_t rkey = 0;     ///< of a WRITE
  std::uint32_t imm = 0;      ///< of a WRITE with immediate data
  std::uint64_t address = 0;  ///< of a WRITE
  bool operator==(const Frame&) const = default;
};
inline constexpr std::size_t kFrameBytes = 24;
void encode(const Frame& frame, std::span<std::byte, kFrameBytes> out);
/// nullopt for an unknown kind, and where a field that the kind does not have is not zero.
std::optional<Frame> decode_frame(std::span<const std::byte, kFrameBytes> bytes);

}  // namespace paralet::tcp
