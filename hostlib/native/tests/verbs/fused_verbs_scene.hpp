// SPDX-License-Identifier: Apache-2.0
// Two fused devices of the `verbs` back end, over a fake libibverbs: their members are two GIDs of one NIC, each with a
// context of its own.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/interfaces.hpp"
#include "verbs_scene.hpp"

namespace paralet::test {

inline constexpr std::array<unsigned, 2> kGids = {3, 5};  // of the members
inline constexpr std::size_t kSecondMember = 1;           // the context of the first device's member 1

/// Members of a fused device's lanes.
inline std::vector<unsigned> members_of(Device& device) {
  std::vector<unsigned> out;
  for (const LaneCounters& lane : device.counters().lanes) out.push_back(lane.member);
  return out;
}

inline DeviceOptions fused_options() {
  DeviceOptions out = verbs_options(4);
  out.fused_with = {*parse_address("::1")};
  out.flowlet_bytes = 10'000;
  out.log = [](const std::string&) {};
  return out;
}

/// Lanes leave a path that is silent for this long.
inline DeviceOptions silent_for(Nanos min_timeout) {
  DeviceOptions out = fused_options();
  out.min_timeout = min_timeout;
  return out;
}

inline DeviceOptions short_retries() {
  DeviceOptions out = fused_options();
  out.retry_time = 300 * kMillisecond;
  return out;
}

struct FusedVerbsPair : VerbsPair {
  explicit FusedVerbsPair(
      const DeviceOptions& options = fused_options(), const std::function<void()>& before = [] {})
      : VerbsPair(options, before) {
    REQUIRE(eventually([&] { return exchange(), all_used(one) && all_used(two); }));
  }
  FusedVerbsPair(const FusedVerbsPair&) = delete;
  FusedVerbsPair& operator=(const FusedVerbsPair&) = delete;
  /// Closes the devices before their messages go.
  ~FusedVerbsPair() {
    one.close();
    two.close();
  }
  static bool all_used(Device& device) {
    return std::ranges::all_of(device.counters().lanes, [](const auto& lane) { return lane.flowlets > 0; });
  }
  /// Begins messages in both directions.
  void begin() {
    out.clear();
    requests.clear();
    for (std::size_t i = 0; i < kMessages; ++i) out.push_back(random_fill(++seed, 30'000));
    there.assign(kMessages, Bytes(30'000));
    back = there;
    for (std::size_t i = 0; i < kMessages; ++i) {
      requests.push_back(submit(two, from, Request::Kind::kReceive, {.bytes = there[i]}));
      requests.push_back(submit(one, to, Request::Kind::kReceive, {.bytes = back[i]}));
      requests.push_back(submit(one, to, Request::Kind::kSend, {.bytes = out[i]}));
      requests.push_back(submit(two, from, Request::Kind::kSend, {.bytes = out[i]}));
    }
  }
  /// The same until the NIC has lost a request of them: messages may end before one goes over a dead path.
  void begin_with_losses() {
    do {
      begin();
      REQUIRE(eventually([&] {
        return fake_verbs::record().lost > 0 ||
               std::ranges::none_of(requests, [](const auto& each) { return each->state == Request::State::kPending; });
      }));
    } while (fake_verbs::record().lost == 0);
  }
  void finish() {
    for (const auto& request : requests) require_done(request);
    REQUIRE(there == out);
    REQUIRE(back == out);
  }
  void exchange() {
    begin();
    finish();
  }
  bool all_on(const std::vector<unsigned>& members) {
    return eventually([&] {
      exchange();
      return members_of(one) == members && members_of(two) == members;
    });
  }
  static constexpr std::size_t kMessages = 16;
  std::size_t seed = 0;
  std::vector<Bytes> out;
  std::vector<Bytes> there;
  std::vector<Bytes> back;
  std::vector<std::shared_ptr<Request>> requests;
};

}  // namespace paralet::test
