// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.hpp"
#include "base/clock.hpp"
#include "base/ip_address.hpp"
#include "base/ring.hpp"
#include "engine/channel.hpp"
#include "engine/fusion.hpp"
#include "engine/handshake.hpp"
#include "engine/lane.hpp"
#include "engine/lane_choice.hpp"
#include "engine/receive_slots.hpp"
#include "engine/request.hpp"
#include "engine/send_payloads.hpp"
#include "engine/signs_of_life.hpp"
#include "wire/peer_name.hpp"

namespace paralet {

/// A control record: receive advertisements, asks and credits that go to a peer in one SEND, and the memory of its
/// payload.
struct AdvertisementBatch {
  static constexpr std::size_t kMaxAdvertisements = 12;
  std::array<std::byte, kMaxAdvertisements * handshake::kAdvertisementBytes> bytes;
  std::uint32_t used = 0;                               ///< bytes
  std::uint32_t each = handshake::kAdvertisementBytes;  ///< bytes of an advertisement
  Lane* lane = nullptr;                                 ///< the lane that carries it; nullptr when it is not posted
  bool repeated = false;                                ///< sent again on another lane, because this one is silent
  bool registers = false;                               ///< `bytes` is to be registered and is not yet
  std::uint32_t memory = 0;                             ///< registration of `bytes`, 0: none
};

/// Another device that this one shares QPs with, and the TCP channel that keeps the two in step.
struct Peer {
  enum class State : std::uint8_t {
    kConnecting,  ///< QPs exist; the other side's are unknown
    kReady,       ///< QPs are connected
    kDead,        ///< given up or closed: nothing may use it; the next housekeeping removes it
  };

  /// What waits until QPs are set up.
  struct Opening {
    std::vector<handshake::Frame> held;                ///< frames that came while `setting_up`
    std::vector<std::shared_ptr<Connection>> waiting;  ///< connecting sides that wait for kReady
  };

  State state = State::kConnecting;
  handshake::Guid device{};
  IpAddress address;
  std::uint16_t udp_port = 0;                 ///< where it receives packets; known in kReady
  std::uint16_t max_ip_id = kDefaultMaxIpId;  ///< highest IPv4 identification of its packets
  bool initiator = false;                     ///< we connected to it
  bool eager = false;                         ///< both sides send short messages eagerly
  std::vector<std::uint16_t> further_ports;   ///< where it receives packets of its shards 1, 2, ..
  /// That its engine runs. What follows begins in its padding: an idle peer is to stay small (docs/performance.md).
  [[no_unique_address]] Signs signs;
  bool credit_waits = false;           ///< short messages wait for credits, which a receiver notices
  bool fewer_lanes = false;            ///< its welcome had fewer lanes than our hello: it has no ports for more
  bool heard = false;                  ///< its engine has sent something since the last housekeeping
  bool delivered = false;              ///< it, or its kernel, has acknowledged something since
  bool advertisements_urgent = false;  ///< the sender may be waiting for `gathering`
  bool setting_up = false;             ///< the set-up thread creates or connects the QPs of all lanes
  bool narrowed = false;               ///< `path_mtu` is smaller than the hello and the welcome agreed on
  unsigned setups = 0;                 ///< jobs of the set-up and the memory thread that use this object
  std::uint32_t path_mtu = 0;          ///< of lanes that are set up from now on
  std::uint32_t connections = 0;
  std::unique_ptr<Channel> channel;  ///< nullptr between fused devices
  std::unique_ptr<Fusion> fusion;    ///< where both devices are fused, alike
  std::unique_ptr<Opening> opening;  ///< behind a pointer, as only a peer that is being set up has one
  std::vector<Lane> lanes;
  LaneChoice choice;
  AdvertisementBatch* gathering = nullptr;  ///< advertisements that wait to be sent together
  Nanos advertisements_since = 0;           ///< age of `gathering`
  std::vector<std::shared_ptr<AdvertisementBatch>> batches;
  std::vector<AdvertisementBatch*> spare_batches;
  Ring<Request*> sending;  ///< messages with flowlets to post, oldest first
  ReceiveSlots slots;
  Nanos idle_since = 0;   ///< when the last connection closed
  Nanos quiet_since = 0;  ///< when it became ready, was last heard, had work on its way, or was pinged
  Nanos heard_at = 0;     ///< when housekeeping last saw `heard`

  /// What waits for this peer; made where there is none.
  Opening& until_set_up() {
    if (!opening) opening = std::make_unique<Opening>();
    return *opening;
  }
  /// One, or between fused devices one per member; nullptr: not open.
  [[nodiscard]] std::span<std::unique_ptr<Channel>> channels() {
    return fusion ? std::span(fusion->channels) : std::span(&channel, 1);
  }
  /// The channel over which it is set up.
  [[nodiscard]] Channel& first_channel() { return *channels()[fusion ? fusion->start.member : 0]; }
  /// The number of one of `lanes`.
  [[nodiscard]] unsigned index_of(const Lane& lane) const { return static_cast<unsigned>(&lane - lanes.data()); }
  /// The member on which a lane starts.
  [[nodiscard]] unsigned first_member(std::size_t lane) const { return fusion ? fusion->first_member(lane) : 0; }
  /// A route takes shorter packets only.
  void narrow(std::uint32_t most) {
    narrowed = narrowed || most < path_mtu;
    path_mtu = std::min(path_mtu, most);
  }
  /// Before the QPs are set up: both devices are fused.
  Fusion& fuse(unsigned members, const Fusion::Start& start) {
    fusion = std::make_unique<Fusion>();
    fusion->start = start;
    fusion->members.resize(members);
    fusion->channels.resize(members);
    fusion->channels[start.member] = std::move(channel);
    return *fusion;
  }
  /// Whether a welcome fits the handle and our hello.
  [[nodiscard]] bool fits(const handshake::Endpoint& remote) const;
  void take_members(const handshake::Endpoint& remote);
  /// A QP of the peer, at the address of its member.
  [[nodiscard]] RemoteQp remote_qp(const QpIdentity& qp, const Ece& ece) const;
  /// The QPs are connected. Lanes of other members wait until a channel from the member's address shows that it is the
  /// peer's, and that the path works.
  void begin_fusion();
  /// Whether lanes can go over another member than this one.
  [[nodiscard]] bool has_other_path(unsigned member) const;
  [[nodiscard]] bool ready() const { return state == State::kReady; }
  [[nodiscard]] bool dead() const { return state == State::kDead; }
  [[nodiscard]] PeerName name() const { return {address, udp_port}; }
};

}  // namespace paralet
