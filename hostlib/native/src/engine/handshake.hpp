// SPDX-License-Identifier: Apache-2.0
// The messages that set up peers and connections (over TCP) and advertise receive buffers (over the QPs).
// docs/protocol.md describes them for other implementations. All numbers are big-endian.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "backend/backend.hpp"

namespace paralet::handshake {

inline constexpr std::uint16_t kVersion = 1;
inline constexpr std::size_t kHandleBytes = 128;
inline constexpr std::size_t kMaxFrameBytes = 16384;
inline constexpr std::size_t kMaxQps = 1024;

using Guid = std::array<std::byte, 16>;
using Token = std::array<std::byte, 16>;

/// What a listener hands out, by whatever way the application has.
struct Handle {
  std::uint32_t address = 0;
  std::uint16_t tcp_port = 0;
  Guid device{};
  std::uint32_t listener = 0;
  Token token{};
};
std::array<std::byte, kHandleBytes> encode(const Handle& handle);
std::optional<Handle> decode_handle(std::span<const std::byte> bytes);

/// One side's QPs towards the other, lane by lane.
struct Endpoint {
  Guid device{};
  std::uint32_t address = 0;
  std::uint16_t udp_port = 0;
  std::uint32_t path_mtu = 0;
  std::vector<QpIdentity> qps;
  std::uint16_t max_ip_id = kDefaultMaxIpId;
  Ece ece;  ///< of every QP
};

struct Hello {
  std::uint32_t listener = 0;
  Token token{};
  Endpoint endpoint;
};
struct Welcome {
  Endpoint endpoint;
};
struct Refuse {
  std::string reason;
};
struct Connect {
  std::uint32_t connection = 0;  ///< the sender's name for it
  std::uint32_t listener = 0;
  Token token{};
};
struct Accept {
  std::uint32_t connection = 0;  ///< the connecting side's name
  std::uint32_t peer_connection = 0;
};
struct Reject {
  std::uint32_t connection = 0;
  std::string reason;
};
struct Close {
  std::uint32_t connection = 0;  ///< the receiver's name; no new flowlets may be started
};
struct Closed {
  std::uint32_t connection = 0;  ///< the receiver's name; the last flowlet is done
};
/// A message did not fit the receive that it met.
struct Overrun {
  std::uint32_t connection = 0;
  std::uint16_t slot = 0;
  std::uint64_t message_bytes = 0;
};
/// A QP to take the place of a lane's, which is renewed because its source port is fixed. Answered by another one; QPN
/// 0 as the answer: none can be had.
struct NewQp {
  std::uint16_t lane = 0;
  QpIdentity qp;
  Ece ece;
};
/// The sender's new QP is connected: the receiver may post on its own.
struct QpReady {
  std::uint16_t lane = 0;
};
/// All that the sender has posted on the lane's former QP is acknowledged, and it will post no more there.
struct QpDrained {
  std::uint16_t lane = 0;
};
using Frame =
    std::variant<Hello, Welcome, Refuse, Connect, Accept, Reject, Close, Closed, Overrun, NewQp, QpReady, QpDrained>;

/// With the length prefix.
std::vector<std::byte> encode(const Frame& frame);
/// `body` is one frame without its length prefix. Nothing when it is malformed.
std::optional<Frame> decode(std::span<const std::byte> body);

/// A receive buffer advertised to the sender ("clear to send"), the payload of a SEND on any QP to the peer.
struct Advertisement {
  std::uint32_t connection = 0;  ///< the sender-side name of the connection
  std::uint32_t sequence = 0;    ///< advertisements of one connection may overtake each other
  std::uint32_t tag = 0;
  std::uint16_t slot = 0;  ///< comes back in the immediate data of the flowlets
  std::uint32_t rkey = 0;
  std::uint64_t address = 0;
  std::uint64_t length = 0;
};
inline constexpr std::size_t kAdvertisementBytes = 40;
std::array<std::byte, kAdvertisementBytes> encode(const Advertisement& advertisement);
std::optional<Advertisement> decode_advertisement(std::span<const std::byte> bytes);

/// A flowlet is whole, said in a SEND behind its WRITE on the same QP: instead of immediate data.
struct FlowletEnd {
  std::uint16_t slot = 0;   ///< of the receive
  std::uint16_t count = 0;  ///< flowlets of the message
  std::uint32_t bytes = 0;  ///< of this one
};
inline constexpr std::size_t kFlowletEndBytes = 12;
std::array<std::byte, kFlowletEndBytes> encode(const FlowletEnd& end);
std::optional<FlowletEnd> decode_flowlet_end(std::span<const std::byte> bytes);

/// Immediate data of a flowlet: the receive's slot and the number of flowlets in the message.
inline std::uint32_t immediate(std::uint16_t slot, std::uint32_t count) {
  return (static_cast<std::uint32_t>(slot) << 16) | count;
}

}  // namespace paralet::handshake
