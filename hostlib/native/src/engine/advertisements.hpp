// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "engine/peer.hpp"
#include "engine/progress_lock.hpp"
#include "engine/registrations.hpp"
#include "engine/request.hpp"
#include "engine/shard.hpp"

namespace paralet {

/// Sends control records to peers: advertisements of this side's receives, and the asks and credits of eager messages.
/// They gather for a moment, so that several go in one SEND.
class Advertisements {
 public:
  /// Open receives of a connection: advertisements of more may wait to be sent together.
  static constexpr std::size_t kEnough = 4;

  Advertisements(Shard& shard, Registrations& registrations) : shard_(shard), registrations_(registrations) {}

  /// Advertises a receive, which has a slot and is in its connection's list.
  void add(Request& receive) PARALET_REQUIRES(progress_lock);
  /// Asks the peer to advertise its receives again (EagerSends).
  void ask(Connection& connection, std::uint32_t number) PARALET_REQUIRES(progress_lock);
  /// Tells the peer which eager messages are done.
  void grant(Connection& connection) PARALET_REQUIRES(progress_lock);
  /// Whether any wait to be sent with more.
  [[nodiscard]] bool waiting() const PARALET_REQUIRES(progress_lock) { return !gathering_.empty(); }
  /// Sends those that have waited long enough, or whose sender may wait for them.
  void send_due(Nanos now) PARALET_REQUIRES(progress_lock);
  void send_all() PARALET_REQUIRES(progress_lock);
  /// Sends the advertisements of silent lanes again on other lanes, because the peer uses advertisements in order. It
  /// ignores the second copy.
  void repeat(Peer& peer) PARALET_REQUIRES(progress_lock);
  /// The peer has acknowledged the batch.
  static void on_sent(Peer& peer, AdvertisementBatch& batch);
  /// The peer has failed, and its QPs are gone.
  void drop(Peer& peer) PARALET_REQUIRES(progress_lock);

 private:
  void gather(Peer& peer, std::span<const std::byte> item, bool urgent) PARALET_REQUIRES(progress_lock);
  void send(Peer& peer) PARALET_REQUIRES(progress_lock);
  void post(Lane& lane, AdvertisementBatch& batch) PARALET_REQUIRES(progress_lock);
  AdvertisementBatch& spare_batch(Peer& peer) PARALET_REQUIRES(progress_lock);

  Shard& shard_;
  Registrations& registrations_;
  std::vector<Peer*> gathering_ PARALET_GUARDED_BY(progress_lock);  ///< peers whose `gathering` is not sent yet
};

}  // namespace paralet
