// SPDX-License-Identifier: Apache-2.0
// How many cores move the packets of a device (docs/notes/sharding.md).
#pragma once

#include "engine/options.hpp"

namespace paralet {

/// What a choice of shards depends on.
struct ShardRule {
  unsigned wanted = 1;      ///< the option, 0: choose
  unsigned lanes = 1;       ///< of one NIC
  unsigned nics = 1;        ///< of the device, which share the cores
  unsigned cores = 1;       ///< that the process may use
  double nic_rate_bps = 0;  ///< of one NIC, 0: unknown
  bool one_port = false;    ///< something outside plans for one destination port
};

/// Shards of each NIC, 1 to kMaxShards. What is wanted counts, but a shard without a lane has nothing to do. The choice
/// is a shard for each 25 Gbit/s, which a core moves in both directions, on at most half of the cores: the application
/// and the kernel need the others. An unknown speed counts as 10 Gbit/s.
unsigned shard_count(const ShardRule& rule);

/// The same for a device, on this machine.
unsigned shard_count(const DeviceOptions& options);

}  // namespace paralet
