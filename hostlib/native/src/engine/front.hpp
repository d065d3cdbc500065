// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/work.hpp"
#include "base/clock.hpp"
#include "engine/channel.hpp"
#include "engine/context.hpp"
#include "engine/handshake.hpp"
#include "engine/parts.hpp"
#include "engine/peer.hpp"
#include "engine/peer_events.hpp"
#include "engine/progress_lock.hpp"
#include "engine/request.hpp"
#include "engine/shard.hpp"

namespace paralet {

/// Everything of a device but its shard: peers, connections, messages, control. It gives each part its turn, and hands
/// frames and completions to the part that they concern.
class Front final : public PeerEvents {
 public:
  /// Throws DeviceError.
  Front(Context& context, ProgressLock& lock, Shard& shard)
      : context_(context), lock_(lock), shard_(shard), parts_(context, lock, shard, *this) {}

  /// For public calls.
  [[nodiscard]] Parts& parts() { return parts_; }

  // -- rounds -----------------------------------------------------------------------------------------------------
  /// One round: channels, submitted requests, packets, timers. True when anything was done.
  bool step(Nanos now) PARALET_REQUIRES(progress_lock);
  /// Serves the sockets that are readable or writable, except those of the back end.
  void look() PARALET_REQUIRES(progress_lock);
  /// The next step looks.
  void look_soon() PARALET_REQUIRES(progress_lock) { rounds_ = 0; }
  void start(std::shared_ptr<Request> request) PARALET_REQUIRES(progress_lock);
  /// Posts flowlets and advertisements, and sends what may leave now. True when anything left.
  bool flush(Nanos now) PARALET_REQUIRES(progress_lock);
  /// Sends the advertisements and acknowledgements that were kept back to be sent together with more.
  void settle(Nanos now) PARALET_REQUIRES(progress_lock);
  /// The same for a thread that then sleeps until `next_deadline`, or until a socket is ready.
  void rest(Nanos now) PARALET_REQUIRES(progress_lock);
  /// When a step has work even if nothing arrives.
  [[nodiscard]] Nanos next_deadline(Nanos now) const PARALET_REQUIRES(progress_lock);

  // -- PeerEvents -------------------------------------------------------------------------------------------------
  void fail_peer(Peer& peer, Failure failure, const std::string& why) override PARALET_REQUIRES(progress_lock) {
    parts_.ends.fail(peer, failure, why);
  }
  void fail_unreachable(Peer& peer, Failure failure, const std::string& why) override PARALET_REQUIRES(progress_lock) {
    parts_.ends.fail_unreachable(peer, failure, why);
  }
  void on_member_unusable(Peer& peer, unsigned member, const std::string& why) override
      PARALET_REQUIRES(progress_lock) {
    parts_.members.leave(peer, member, why);
  }
  void on_renewed(Peer& peer, unsigned lane) override PARALET_REQUIRES(progress_lock) {
    if (peer.lanes[lane].moving_to) parts_.ports.move(peer, lane);
  }
  void on_last_flowlets(Connection& connection) override PARALET_REQUIRES(progress_lock) {
    parts_.closes.advance(connection);
  }
  void on_channel_closed(Peer& peer, unsigned member) override PARALET_REQUIRES(progress_lock);
  void on_frame(Peer& peer, const handshake::Frame& frame) override PARALET_REQUIRES(progress_lock);

 private:
  // What comes in.
  [[nodiscard]] bool from_engine(const Peer& peer, const Completion& completion) const PARALET_REQUIRES(progress_lock);
  void on_sign(Peer& peer, const handshake::SignOfLife& sign) PARALET_REQUIRES(progress_lock);
  void ask_for_sign(Peer& peer, Nanos now) PARALET_REQUIRES(progress_lock);
  void on_completion(const Completion& completion) PARALET_REQUIRES(progress_lock);
  void on_received_send(Peer& peer, unsigned lane, std::span<const std::byte> bytes) PARALET_REQUIRES(progress_lock);
  void on_control_record(Peer& peer, std::span<const std::byte> bytes) PARALET_REQUIRES(progress_lock);
  std::vector<handshake::Frame> serve(Channel& channel, std::uint32_t events) PARALET_REQUIRES(progress_lock);
  void on_incoming(Channel& channel, std::uint32_t events) PARALET_REQUIRES(progress_lock);
  void welcome_held() PARALET_REQUIRES(progress_lock);
  void on_channel_event(int fd, std::uint32_t events) PARALET_REQUIRES(progress_lock);
  void on_frames(Peer& peer, const std::vector<handshake::Frame>& frames) PARALET_REQUIRES(progress_lock);

  // Periodic.
  void housekeeping(Nanos now) PARALET_REQUIRES(progress_lock);
  bool keep_peer(Peer& peer, Nanos now) PARALET_REQUIRES(progress_lock);
  void release_spare() PARALET_REQUIRES(progress_lock);

  Context& context_;
  ProgressLock& lock_;
  Shard& shard_;
  Parts parts_;
  std::vector<Completion> completions_ PARALET_GUARDED_BY(progress_lock);
  unsigned rounds_ PARALET_GUARDED_BY(progress_lock) = 0;
  Nanos next_release_ PARALET_GUARDED_BY(progress_lock) = 0;
};

}  // namespace paralet
