// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "backend/backend.hpp"
#include "base/clock.hpp"
#include "engine/context.hpp"
#include "engine/eager.hpp"
#include "engine/peer.hpp"
#include "engine/progress_lock.hpp"

namespace paralet {

/// What LaneChoice asks of the back end.
class LaneEstimates {
 public:
  explicit LaneEstimates(const Backend& backend) : backend_(backend) {}
  [[nodiscard]] PathEstimate estimate(const Lane& lane) const { return backend_.estimate(lane.qp.qpn); }
  [[nodiscard]] static Nanos now() { return paralet::now(); }

 private:
  const Backend& backend_;
};

/// The part of a device that moves packets: a back end with the QPs of lanes. All else is the front. Where the device
/// uses several cores, its back end consists of several shards (docs/notes/sharding.md).
class Shard {
 public:
  struct QpOwner {
    Peer* peer;
    unsigned lane;
  };

  Shard(Context& context, std::unique_ptr<Backend> backend);

  // -- open and closed --------------------------------------------------------------------------------------------
  [[nodiscard]] bool open() const PARALET_REQUIRES(progress_lock) { return backend_ != nullptr; }
  /// Throws DeviceError when the device is closed.
  void require_open() const PARALET_REQUIRES(progress_lock);
  void close() PARALET_REQUIRES(progress_lock) { backend_.reset(); }
  /// In a forked child: the parent goes on using it.
  void leave_to_parent() PARALET_REQUIRES(progress_lock) { static_cast<void>(backend_.release()); }
  /// While it is open.
  [[nodiscard]] Backend& backend() const PARALET_REQUIRES(progress_lock) { return *backend_; }

  // -- QPs --------------------------------------------------------------------------------------------------------
  void own(std::uint32_t qpn, Peer& peer, unsigned lane) PARALET_REQUIRES(progress_lock) {
    owners_.emplace(qpn, QpOwner{&peer, lane});
  }
  /// nullptr for a QP that no lane has any more.
  [[nodiscard]] const QpOwner* owner(std::uint32_t qpn) const PARALET_REQUIRES(progress_lock) {
    const auto found = owners_.find(qpn);
    return found != owners_.end() ? &found->second : nullptr;
  }
  void drop_qp(std::uint32_t qpn) PARALET_REQUIRES(progress_lock);
  /// Drops the QPs of a peer's lanes, without those that are being set up: the end of their set-up drops them.
  void drop_qps(const Peer& peer) PARALET_REQUIRES(progress_lock);
  /// Whether the port of this member of the device is down, or its NIC has failed.
  [[nodiscard]] bool unusable(unsigned member) const PARALET_REQUIRES(progress_lock);

  // -- lanes ------------------------------------------------------------------------------------------------------
  void post(Lane& lane, const WorkRequest& work) PARALET_REQUIRES(progress_lock) {
    ++lane.unfinished;
    backend_->post(lane.qp.qpn, work);
  }
  [[nodiscard]] LaneEstimates measured() const PARALET_REQUIRES(progress_lock) { return LaneEstimates(*backend_); }
  /// Whether the lane's path seems dead: the current silence is several times its usual round trip.
  [[nodiscard]] bool silent(const Lane& lane) const PARALET_REQUIRES(progress_lock);
  /// Whether a QP has been silent for a timeout.
  [[nodiscard]] bool past_timeout(std::uint32_t qpn) const PARALET_REQUIRES(progress_lock);
  /// Whether a change of the lane's port now keeps flowlets in order: none is in progress, or they stay on the old QP.
  [[nodiscard]] bool may_move(const Lane& lane) const PARALET_REQUIRES(progress_lock);

  /// Checks that a quiet peer is alive with a WRITE of no bytes. It needs no receive; a peer that does not acknowledge
  /// it is given up after the retry time, as for data.
  void ping(Peer& peer) PARALET_REQUIRES(progress_lock) {
    post(peer.choice.for_urgent(peer.lanes, peer.path_mtu, measured()), {.kind = WorkKind::kWrite});
  }

  // -- incoming SENDs ---------------------------------------------------------------------------------------------
  /// What a completion received.
  [[nodiscard]] std::span<const std::byte> received(const Completion& completion) const
      PARALET_REQUIRES(progress_lock) {
    return {buffers_.get() + completion.cookie * buffer_bytes_, completion.byte_length};
  }
  /// Gives the back end a receive buffer again.
  void post_receive_buffer(std::uint64_t index) PARALET_REQUIRES(progress_lock);

 private:
  Context& context_;
  /// nullptr once the device is closed
  std::unique_ptr<Backend> backend_ PARALET_GUARDED_BY(progress_lock) PARALET_PT_GUARDED_BY(progress_lock);
  std::unordered_map<std::uint32_t, QpOwner> owners_ PARALET_GUARDED_BY(progress_lock);
  const std::size_t buffer_bytes_;              ///< of each receive buffer
  const std::unique_ptr<std::byte[]> buffers_;  ///< pages that no SEND has reached take no memory
};

}  // namespace paralet
