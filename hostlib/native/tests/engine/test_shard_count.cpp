// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "backend/backend.hpp"
#include "engine/shard_count.hpp"

namespace paralet {
namespace {

TEST_CASE("the number of shards that is wanted counts, as far as there are lanes") {
  CHECK(shard_count({.wanted = 1, .lanes = 8}) == 1);
  CHECK(shard_count({.wanted = 3, .lanes = 8}) == 3);
  CHECK(shard_count({.wanted = 8, .lanes = 3}) == 3);
  CHECK(shard_count({.wanted = 100, .lanes = 1024}) == kMaxShards);
  CHECK(shard_count({.wanted = 2, .lanes = 0}) == 1);
}

TEST_CASE("the choice is a shard for each 25 Gbit/s, on half of the cores") {
  const auto chosen = [](double gbps, unsigned cores, unsigned nics = 1) {
    return shard_count({.wanted = 0, .lanes = 64, .nics = nics, .cores = cores, .nic_rate_bps = gbps * 1e9});
  };
  CHECK(chosen(10, 64) == 1);
  CHECK(chosen(25, 64) == 1);
  CHECK(chosen(40, 64) == 2);
  CHECK(chosen(100, 64) == 4);
  CHECK(chosen(400, 64) == 16);
  CHECK(chosen(800, 64) == kMaxShards);
  CHECK(chosen(0, 64) == 1);  // an unknown speed
  CHECK(chosen(100, 2) == 1);
  CHECK(chosen(100, 1) == 1);
  CHECK(chosen(100, 4) == 2);
  CHECK(chosen(100, 8, 2) == 2);
  CHECK(shard_count({.wanted = 0, .lanes = 2, .cores = 64, .nic_rate_bps = 100e9}) == 2);
  CHECK(shard_count({.wanted = 0, .lanes = 64, .cores = 64, .nic_rate_bps = 100e9, .one_port = true}) == 1);
}

TEST_CASE("an RDMA NIC has no shards, and this machine gives an allowed number") {
  DeviceOptions options;
  options.address = 0x7F000001;
  CHECK(shard_count(options) == 1);
  options.shards = 0;
  const unsigned chosen = shard_count(options);
  CHECK(chosen >= 1);
  CHECK(chosen <= kMaxShards);
  options.shards = 4;
  CHECK(shard_count(options) == 4);
  options.backend = BackendKind::kVerbs;
  CHECK(shard_count(options) == 1);
}

}  // namespace
}  // namespace paralet
