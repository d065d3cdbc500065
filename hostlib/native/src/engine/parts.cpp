// SPDX-License-Identifier: Apache-2.0
#include "engine/parts.hpp"

#include "engine/policy_factory.hpp"
#include "wire/peer_name.hpp"

namespace paralet {

Parts::Parts(Context& context, ProgressLock& lock, Shard& shard, PeerEvents& events)
    : policy(open_policy(context.options, PeerName(context.options.address, context.nics.front().udp_port),
                         context.nics.front().transport, [polling = context.polling] { polling->wake(); })),
      contexts(context.options.policy.lanes_per == LanesPer::kHost ? context.options.policy.lanes : 0),
      frames(sockets),
      registrations(context, lock, shard),
      results(context, registrations),
      fences(shard, results),
      set_up(context, lock, shard, sockets, *policy, events),
      renewals(context, shard, frames, set_up, *policy, events),
      ports(context, shard, peers, *policy, renewals),
      advertisements(shard, registrations),
      receives(peers, registrations, results, advertisements, events),
      copies(registrations),
      sends(context, shard, peers, frames, *policy, results, advertisements, ports, copies, contexts, events),
      members(context, shard, peers, sockets, frames, renewals, events),
      closes(peers, frames, sends, receives, events),
      listeners(context, peers, sockets),
      connections(context, shard, peers, frames, set_up, listeners, members, closes, events),
      ends(context, shard, peers, advertisements, contexts, members, closes, connections),
      observation(context, shard, peers, results, *policy) {
  progress_lock.assume_held();  // no other thread knows the device yet
  sockets.watch(context.polling->wake_fd(), false);
  sockets.watch(shard.backend().event_fd(), false);
}

}  // namespace paralet
