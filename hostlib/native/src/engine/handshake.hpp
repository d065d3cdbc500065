// SPDX-License-Identifier: Apache-2.0
// Wire formats: the frames that set up peers and connections, over TCP. send_payloads.hpp has those of the QPs.
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
inline constexpr std::uint16_t kIpv6HandleVersion = 2;  ///< of handles with an IPv6 address
inline constexpr std::size_t kHandleBytes = 128;
inline constexpr std::size_t kMaxFrameBytes = 16384;
inline constexpr std::size_t kMaxQps = 1024;

using Guid = std::array<std::byte, 16>;
using Token = std::array<std::byte, 16>;

/// Names a listener. The application passes it to the connecting side by its own means.
struct Handle {
  struct Member {
    IpAddress address;
    std::uint16_t tcp_port = 0;
  };
  IpAddress address;
  std::uint16_t tcp_port = 0;
  Guid device{};
  std::uint32_t listener = 0;
  Token token{};
  std::vector<Member> further;  ///< members 1, 2, .. of a fused device
  bool signs_of_life = false;   ///< the listener understands the offer of SignOfLife in a hello
};
std::array<std::byte, kHandleBytes> encode(const Handle& handle);
std::optional<Handle> decode_handle(std::span<const std::byte> bytes);

/// One side's address and its QPs towards the other, by lane. QPNs name the QP's member in their upper eight bits.
struct Endpoint {
  /// A NIC of a fused device.
  struct Member {
    IpAddress address;
    std::uint16_t udp_port = 0;
    std::vector<std::uint16_t> further_ports;
    std::uint16_t max_ip_id = kDefaultMaxIpId;
    Ece ece;
  };
  Guid device{};
  IpAddress address;
  std::uint16_t udp_port = 0;
  std::vector<std::uint16_t> further_ports;  ///< of the shards 1, 2, .. of member 0; other members have as many
  std::uint32_t path_mtu = 0;
  std::vector<QpIdentity> qps;
  std::uint16_t max_ip_id = kDefaultMaxIpId;
  Ece ece;                      ///< of every QP of member 0
  Token join{};                 ///< with `further`: what further channels of the connecting side show (Join)
  std::vector<Member> further;  ///< members 1, 2, .. where both devices are fused
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
  std::uint32_t connection = 0;  ///< the sender's name for the connection
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
/// A message is longer than the receive it was matched with.
struct Overrun {
  std::uint32_t connection = 0;
  std::uint16_t slot = 0;
  std::uint64_t message_bytes = 0;
};
/// The sender's fresh QP for a lane whose QP is renewed because its source port is fixed (renewals.hpp). The answer
/// is a NewQp too; QPN 0 in it means that the NIC has no more QPs.
struct NewQp {
  std::uint16_t lane = 0;
  QpIdentity qp;
  Ece ece;
  std::optional<std::uint32_t> path_mtu;  ///< where a route has become narrower than hello and welcome agreed on
};
/// The sender's fresh QP is connected: the receiver may post on its own fresh QP.
struct QpReady {
  std::uint16_t lane = 0;
};
/// All work that the sender posted on the lane's former QP is acknowledged, and it posts no more there.
struct QpDrained {
  std::uint16_t lane = 0;
};
/// The lane's former QP is on a dead path. The sender's end sends and accepts nothing more.
struct QpStopped {
  std::uint16_t lane = 0;
  std::uint32_t arrived = 0;  ///< messages (SENDs and WRITEs with immediate data) that arrived on it, modulo 2^32
};
/// The first frame of a further channel between fused devices, from and to the addresses of one member.
struct Join {
  Token token{};
  std::uint8_t member = 0;
};
/// The sender uses the path between these members no longer, until the connecting side joins there again.
struct MemberDown {
  std::uint8_t member = 0;
};
/// Between fused devices: one of the frames above, which goes over every channel that is open.
struct Numbered {
  std::uint32_t number = 0;        ///< of the frame, from 0; without one, of the next
  std::uint32_t acknowledged = 0;  ///< frames taken from the receiver, modulo 2^32
  std::vector<std::byte> body;     ///< the frame without its length prefix; empty: none
};
/// The sender's engine runs. Only between devices that have agreed on it (signs_of_life.hpp).
struct SignOfLife {
  bool wants_answer = false;
};
using Frame = std::variant<Hello, Welcome, Refuse, Connect, Accept, Reject, Close, Closed, Overrun, NewQp, QpReady,
                           QpDrained, QpStopped, Join, MemberDown, Numbered, SignOfLife>;

/// The frame with its length prefix.
std::vector<std::byte> encode(const Frame& frame);
/// `body` is one frame without its length prefix. nullopt when it is malformed.
std::optional<Frame> decode(std::span<const std::byte> body);

}  // namespace paralet::handshake
