// SPDX-License-Identifier: Apache-2.0
// What a peer has when both devices are fused: the paths between members of one index, and control frames that survive
// the loss of any of them. docs/protocol.md, section 6.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "engine/channel.hpp"
#include "engine/handshake.hpp"

namespace paralet {

/// Control frames go over every channel that is open, and the first copy counts. A channel that opens later first
/// carries all that the peer has not acknowledged, so on each channel every frame comes after those before it.
class FrameNumbers {
 public:
  enum class Verdict : std::uint8_t {
    kNew,    ///< take the frame
    kOld,    ///< a copy, or an acknowledgement only
    kWrong,  ///< the peer breaks the rules
  };
  static constexpr std::size_t kMost = 65536;  ///< frames that wait for acknowledgement

  /// Gives a frame its number, and keeps it until the peer acknowledges it.
  const handshake::Numbered& add(const handshake::Frame& frame);
  Verdict take(const handshake::Numbered& frame);
  [[nodiscard]] const std::deque<handshake::Numbered>& unacknowledged() const { return kept_; }
  /// Whether frames were taken and nothing told the peer so yet. Until the next add or acknowledgement.
  [[nodiscard]] bool owes_acknowledgement() const { return owes_; }
  handshake::Numbered acknowledgement();

 private:
  std::uint32_t next_ = 0;   ///< number of our next frame
  std::uint32_t taken_ = 0;  ///< frames of the peer
  bool owes_ = false;
  std::deque<handshake::Numbered> kept_;
};

struct Fusion {
  /// How a peer is set up.
  struct Start {
    unsigned member = 0;  ///< over the channel between these members
    bool spread = true;   ///< lane i starts on member i mod k; else all lanes start on `member`
  };
  /// The path between our member and the peer's of one index.
  struct Member {
    IpAddress address;           ///< of the peer's
    std::uint16_t tcp_port = 0;  ///< where to join, on the connecting side
    std::uint16_t udp_port = 0;
    std::vector<std::uint16_t> further_ports;  ///< of its shards 1, 2, ..
    std::uint16_t max_ip_id = kDefaultMaxIpId;
    Ece ece;
    bool up = false;            ///< its channel is open: TCP has shown that the path works
    bool down = false;          ///< lanes leave it
    bool heard = false;         ///< something came over it since the last housekeeping
    bool acknowledged = false;  ///< the same of the end of a request
    Nanos heard_at = 0;
    Nanos acknowledged_at = 0;
    Nanos suspected_at = 0;  ///< since when a lane on it has been silent for more than a timeout, 0: none has
    Nanos proven_at = 0;     ///< when, after that, another path was seen to work, 0: not yet
    Nanos up_since = 0;
    Nanos join_at = 0;  ///< on the connecting side: when to open its channel, or to give up that it opens
    Nanos wait = 0;     ///< the same: between the last two attempts that failed, 0: none has
    Nanos rest = 0;     ///< how long it stays unused the next time

    /// Whether, beside the lane that is silent, others of the path are not.
    [[nodiscard]] bool delivers() const { return suspected_at != 0 && acknowledged_at > suspected_at; }
  };

  Start start;
  std::vector<Member> members;
  std::vector<std::unique_ptr<Channel>> channels;  ///< by member; nullptr: not open
  handshake::Token token{};                        ///< for Join
  FrameNumbers numbers;
  Nanos lost_at = 0;  ///< since when no path stays up, 0: one does

  /// The member to which a lane returns.
  [[nodiscard]] unsigned home(std::size_t lane) const { return static_cast<unsigned>(lane % members.size()); }
  [[nodiscard]] unsigned first_member(std::size_t lane) const { return start.spread ? home(lane) : start.member; }
  /// Whether a channel has shown that the peer has the address of its member 0.
  [[nodiscard]] bool address_proven() const { return members.front().up_since != 0; }
  /// The member that a lane on `member` goes to: the next one that is up. `member` itself where there is none.
  [[nodiscard]] unsigned other(unsigned member) const;
};

}  // namespace paralet
