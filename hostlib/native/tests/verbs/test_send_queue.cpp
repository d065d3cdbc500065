// SPDX-License-Identifier: Apache-2.0
// What a send queue measures, and what the adaptive policy makes of it. Clock, NIC and polls are the test's own.
#include <doctest/doctest.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "engine/lane_times.hpp"
#include "engine/policy_factory.hpp"
#include "verbs/memory.hpp"
#include "verbs/send_queue.hpp"

namespace paralet::verbs {
namespace {

constexpr std::uint32_t kShort = 100;
constexpr std::uint32_t kLong = 500'000;
constexpr double kByteTime = 40;  // nanoseconds
constexpr Nanos kRtt = 4 * kMillisecond;
constexpr PeerName kPeer{0x0A000002, 4791};

/// A queue pair of a NIC that sends its requests one after the other. Their acknowledgements come `kRtt` later.
struct Lane {
  Lane(SendContext& context, unsigned index) {
    verbs.ops.post_send = take;
    qp.context = &verbs;
    qp.qp_context = this;
    qp.qp_num = index;
    queue = std::make_unique<SendQueue>(context, &qp, kInlineBytes);
    queue->set_path_mtu(1024);
  }
  static int take(ibv_qp* qp, ibv_send_wr* requests, ibv_send_wr** /*refused*/) {
    auto& lane = *static_cast<Lane*>(qp->qp_context);
    for (const ibv_send_wr* request = requests; request != nullptr; request = request->next) {
      const double bytes = request->num_sge > 0 ? request->sg_list->length : 0;
      lane.sends_until = std::max(lane.sends_until, lane.clock) + static_cast<Nanos>(bytes * lane.byte_time);
      if ((request->send_flags & IBV_SEND_SIGNALED) != 0) {
        lane.acknowledged.emplace_back(request->wr_id, lane.sends_until + kRtt);
      }
    }
    return 0;
  }
  [[nodiscard]] QpStatistics statistics() const {
    QpStatistics out;
    out.counters.timeouts = queue->timeouts();
    out.smoothed_rtt = queue->latency();
    out.path_rtt = queue->path_latency();
    out.busy = queue->holds_long();
    out.byte_time = queue->byte_time();
    return out;
  }

  double byte_time = kByteTime;
  Nanos clock = 0;
  Nanos sends_until = 0;
  std::deque<std::pair<std::uint64_t, Nanos>> acknowledged;  ///< wr_id, and when
  unsigned outstanding = 0;
  std::uint64_t timeouts_seen = 0;
  unsigned moves = 0;
  ibv_context verbs{};
  ibv_qp qp{};
  std::unique_ptr<SendQueue> queue;
};

/// A host with four lanes to a peer, two requests outstanding on each, and the adaptive policy.
struct Host {
  explicit Host(unsigned share_of_short) : one_short_in(share_of_short) {
    for (unsigned i = 0; i < 4; ++i) lanes.push_back(std::make_unique<Lane>(context, i));
  }

  /// Polls at `now`: what has ended by then is finished, and followed by new requests.
  void poll(Nanos now) {
    for (const auto& lane : lanes) {
      while (!lane->acknowledged.empty() && lane->acknowledged.front().second <= now) {
        ibv_wc wc{};
        wc.wr_id = lane->acknowledged.front().first;
        lane->acknowledged.pop_front();
        lane->queue->finish(wc, now + 1);
      }
    }
    context.polled_at = now;
    for (const Completion& completion : std::exchange(completions, {})) {
      --lanes[completion.qpn]->outstanding;
      consult(*lanes[completion.qpn], now);
    }
    for (const auto& lane : lanes) {
      lane->clock = now + 1;
      for (; lane->outstanding < 2; ++lane->outstanding) {
        lane->queue->post({.data = payload.data(), .length = random.below(one_short_in) == 0 ? kShort : kLong});
        lane->queue->hand_over(now + 1);
      }
    }
  }
  /// As Device::consult_policy.
  void consult(Lane& lane, Nanos now) {
    const QpStatistics statistics = lane.statistics();
    LaneTimes times(statistics);
    for (const auto& other : lanes) times.compare(other->statistics());
    const std::uint64_t timeouts =
        statistics.counters.timeouts - std::exchange(lane.timeouts_seen, statistics.counters.timeouts);
    if (policy->after_flowlet({.peer = kPeer,
                               .lane = lane.qp.qp_num,
                               .port = static_cast<std::uint16_t>(0xC000 + lane.qp.qp_num),
                               .smoothed_rtt = times.own(),
                               .peer_rtt = times.best(),
                               .timeouts = timeouts},
                              now)) {
      ++lane.moves;
    }
  }
  /// Polls for `time`: every 100 us, and `late` of 1000 times only after up to 150 ms.
  void run(Nanos time, unsigned late) {
    for (const Nanos until = clock + time; clock < until; poll(clock)) {
      clock += random.below(1000) < late ? static_cast<Nanos>(random.below(150 * kMillisecond)) : 100 * kMicrosecond;
    }
  }

  unsigned one_short_in;
  Nanos clock = kSecond;
  std::vector<std::byte> payload = std::vector<std::byte>(kLong);
  Memory memory{nullptr, "fake0", 4096};
  std::vector<Completion> completions;
  SendContext context{.memory = memory,
                      .completions = completions,
                      .limit = 4096,
                      .min_timeout = 67 * kMillisecond,
                      .retry_time = 10 * kSecond};
  std::vector<std::unique_ptr<Lane>> lanes;
  SplitMix64 random{1};
  std::unique_ptr<PathPolicy> policy = make_policy({.kind = PolicyKind::kAdaptive, .lanes = 4, .seed = 1, .ports = {}});
};

TEST_CASE("short requests measure the round trip, long ones the time per byte, in any mix") {
  Host host(2);
  host.run(5 * kSecond, 0);
  for (const auto& lane : host.lanes) {
    CHECK(lane->queue->byte_time() == doctest::Approx(kByteTime).epsilon(0.2));
    CHECK(static_cast<double>(lane->queue->path_latency()) == doctest::Approx(kRtt).epsilon(0.2));
    CHECK(lane->queue->min_latency() == doctest::Approx(kRtt).epsilon(0.2));
  }
}

TEST_CASE("a host that polls late measures the same times, counts no timeout and moves no lane") {
  for (const unsigned one_short_in : {1U, 2U, 1000U}) {
    for (const unsigned late : {0U, 2U, 20U, 200U, 1000U}) {
      CAPTURE(one_short_in);
      CAPTURE(late);
      Host host(one_short_in);
      host.run(60 * kSecond, late);
      for (const auto& lane : host.lanes) {
        CHECK(lane->moves == 0);
        CHECK(lane->queue->timeouts() == 0);
        if (const double time = lane->queue->byte_time(); time > 0) {
          CHECK(time == doctest::Approx(kByteTime).epsilon(0.35));
        }
        if (const Nanos time = lane->queue->path_latency(); time > 0) {
          CHECK(static_cast<double>(time) == doctest::Approx(kRtt).epsilon(0.35));
        }
      }
    }
  }
}

TEST_CASE("a lane with a slow path moves, and only that one, even on a host that polls late") {
  for (const unsigned late : {0U, 2U}) {
    CAPTURE(late);
    Host host(4);
    host.lanes[2]->byte_time = 4 * kByteTime;
    host.run(60 * kSecond, late);
    for (const auto& lane : host.lanes) CHECK((lane->moves > 0) == (lane == host.lanes[2]));
  }
}

TEST_CASE("a lane whose path is dead counts timeouts") {
  Host host(4);
  host.run(kSecond, 0);
  const Nanos before = host.lanes[2]->queue->estimate().smoothed_rtt;
  const auto lost = std::exchange(host.lanes[2]->acknowledged, {});
  host.run(kSecond, 0);
  for (const auto& lane : host.lanes) CHECK((lane->queue->timeouts() > 0) == (lane == host.lanes[2]));
  CHECK(host.lanes[2]->queue->estimate().smoothed_rtt > 800 * kMillisecond);  // as long as the silence
  const std::uint64_t timeouts = host.lanes[2]->queue->timeouts();
  host.lanes[2]->acknowledged = lost;
  host.run(kSecond, 0);
  CHECK(host.lanes[2]->queue->timeouts() == timeouts);
  CHECK(host.lanes[2]->queue->estimate().smoothed_rtt < 3 * before);
}

}  // namespace
}  // namespace paralet::verbs
