// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "engine/advertisements.hpp"
#include "engine/closes.hpp"
#include "engine/connections.hpp"
#include "engine/context.hpp"
#include "engine/control_frames.hpp"
#include "engine/lane_ports.hpp"
#include "engine/listeners.hpp"
#include "engine/members.hpp"
#include "engine/memory_fences.hpp"
#include "engine/observation.hpp"
#include "engine/peer_ends.hpp"
#include "engine/peer_events.hpp"
#include "engine/peers.hpp"
#include "engine/progress_lock.hpp"
#include "engine/qp_set_up.hpp"
#include "engine/receives.hpp"
#include "engine/registrations.hpp"
#include "engine/renewals.hpp"
#include "engine/results.hpp"
#include "engine/send_copies.hpp"
#include "engine/sending_contexts.hpp"
#include "engine/sends.hpp"
#include "engine/shard.hpp"
#include "engine/sockets.hpp"
#include "paths/path_policy.hpp"

namespace paralet {

/// The parts of a device's front, in the order in which they are built. A part calls those before it. What those after
/// it have to act on it tells `events`.
struct Parts {
  /// Throws DeviceError.
  Parts(Context& context, ProgressLock& lock, Shard& shard, PeerEvents& events);

  std::unique_ptr<PathPolicy> policy PARALET_PT_GUARDED_BY(progress_lock);
  Sockets sockets;
  Peers peers;
  SendingContexts contexts PARALET_GUARDED_BY(progress_lock);
  ControlFrames frames;
  Registrations registrations;
  Results results;
  MemoryFences fences;
  QpSetUp set_up;
  Renewals renewals;
  LanePorts ports;
  Advertisements advertisements;
  Receives receives;
  SendCopies copies;
  Sends sends;
  Members members;
  Closes closes;
  Listeners listeners;
  Connections connections;
  PeerEnds ends;
  Observation observation;
};

}  // namespace paralet
