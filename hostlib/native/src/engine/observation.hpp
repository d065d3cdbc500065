// SPDX-License-Identifier: Apache-2.0
// What a device counts, and what its connections and lanes wait for (`paralet stat --why`). The latter is sampled when
// live counters are published: nothing is counted on the data path.
#pragma once

#include "base/clock.hpp"
#include "engine/context.hpp"
#include "engine/counters.hpp"
#include "engine/live_counters.hpp"
#include "engine/peers.hpp"
#include "engine/progress_lock.hpp"
#include "engine/request.hpp"
#include "engine/results.hpp"
#include "engine/shard.hpp"
#include "paths/path_policy.hpp"

namespace paralet {

class Observation {
 public:
  Observation(const Context& context, Shard& shard, Peers& peers, Results& results, const PathPolicy& policy);

  [[nodiscard]] DeviceCounters counters() const PARALET_REQUIRES(progress_lock);
  /// Periodic: publishes a snapshot when one is due.
  void tick(Nanos now) PARALET_REQUIRES(progress_lock);
  /// Publishes no more.
  void close() PARALET_REQUIRES(progress_lock) { live_counters_ = {}; }
  /// Whether a connection or a request waits for the peer.
  [[nodiscard]] bool awaits(const Peer& peer) const PARALET_REQUIRES(progress_lock);

 private:
  void sample_progress(Nanos now) PARALET_REQUIRES(progress_lock);
  void collect_under_way(DeviceCounters& counters) const PARALET_REQUIRES(progress_lock);
  [[nodiscard]] static bool under_way(const Connection& connection);
  [[nodiscard]] static Connection::Progress progress_of(const Connection& connection);
  [[nodiscard]] static ConnectionCounters counters_of(const Connection& connection);

  Shard& shard_;
  Peers& peers_;
  Results& results_;
  const PathPolicy* const policy_ PARALET_PT_GUARDED_BY(progress_lock);
  LiveCounters live_counters_ PARALET_GUARDED_BY(progress_lock);
};

}  // namespace paralet
