// SPDX-License-Identifier: Apache-2.0
// How flowlets are posted: their ends, and round robin over peers.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "engine/device_fixture.hpp"
#include "engine/eager.hpp"
#include "engine/lane_choice.hpp"
#include "soft/soft_backend.hpp"

namespace paralet {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture

TEST_CASE("without pacing, a flowlet whose last packet would be longer with immediate data ends in a SEND") {
  constexpr std::uint64_t kMtu = 4096;
  for (const double line_rate_bps : {0.0, 1e9}) {
    DeviceOptions of_a = options(kA, 1);
    of_a.line_rate_bps = line_rate_bps;
    of_a.flowlet_bytes = 16 * kMtu;
    Device a(of_a);
    Device b(options(kB, 1));
    REQUIRE(a.path_mtu() == kMtu);
    const Joined joined(a, b);
    struct Case {
      std::uint64_t bytes;
      std::uint64_t packets;  ///< as short as they can be
      std::uint64_t ends;     ///< flowlets that end apart
    };
    for (const Case& c : {Case{2 * kMtu, 2, 0}, Case{2 * kMtu + 1, 3, 0}, Case{3 * kMtu - 4, 3, 0},
                          Case{3 * kMtu - 3, 3, 1}, Case{3 * kMtu, 3, 1}, Case{3 * kMtu + 1, 4, 0},
                          Case{16 * kMtu, 16, 1}, Case{32 * kMtu, 32, 2}, Case{33 * kMtu + 5, 34, 2}}) {
      CAPTURE(line_rate_bps);
      CAPTURE(c.bytes);
      const Bytes out = random_fill(7, c.bytes);
      const auto lane = [&a] { return a.counters().lanes[0]; };
      const LaneCounters before = lane();
      const auto received = joined.receive(Bytes(c.bytes + 100));
      const auto sent = joined.send(out);
      require_done(sent);
      require_done(received);
      REQUIRE(eventually([&] { return joined.to->copies == 0; }));
      CHECK(received->bytes == c.bytes);
      CHECK(std::equal(out.begin(), out.end(), received->memory.begin()));
      const LaneCounters after = lane();
      CHECK(after.flowlets - before.flowlets == (c.bytes + 16 * kMtu - 1) / (16 * kMtu));
      const auto once = [](const LaneCounters& l) { return l.qp.counters.tx_packets - l.qp.counters.retransmits; };
      CHECK(once(after) - once(before) == c.packets + (line_rate_bps > 0 ? 0 : c.ends));
    }
  }
}

/// `soft`, but it accepts one flowlet per round, on any lane, after a number of peers have advertised receives.
class OneFlowletBackend final : public SoftBackend {
 public:
  struct Log {
    std::size_t awaited = 0;          ///< peers that must have advertised a receive
    std::vector<IpAddress> flowlets;  ///< the destination address of each
  };
  OneFlowletBackend(const SoftOptions& options, Log& log) : SoftBackend(options), log_(log) {}
  bool connect_qp(std::uint32_t qpn, const RemoteQp& remote, std::uint16_t port) override {
    address_[qpn] = remote.address;
    return SoftBackend::connect_qp(qpn, remote, port);
  }
  bool progress(Nanos t, std::vector<Completion>& completions) override {
    const bool any = SoftBackend::progress(t, completions);
    for (const Completion& done : completions) {
      if (done.kind == Completion::Kind::kReceivedSend) advertised_.insert(address_[done.qpn]);
    }
    full_ = false;
    return any;
  }
  void post(std::uint32_t qpn, const WorkRequest& request) override {
    if (request.kind == WorkKind::kWrite || request.kind == WorkKind::kWriteImm) {
      log_.flowlets.push_back(address_[qpn]);
      full_ = true;
    }
    SoftBackend::post(qpn, request);
  }
  [[nodiscard]] bool wants_work(Nanos /*t*/) const override { return advertised_.size() >= log_.awaited && !full_; }
  [[nodiscard]] PathEstimate estimate(std::uint32_t qpn) const override {
    PathEstimate out = SoftBackend::estimate(qpn);
    out.app_limited = true;
    return out;
  }

 private:
  Log& log_;
  std::map<std::uint32_t, IpAddress> address_;
  std::set<IpAddress> advertised_;
  bool full_ = false;
};

TEST_CASE("long messages to several peers are served round robin") {
  constexpr std::size_t kPeers = 3;
  constexpr std::size_t kFlowlets = 20;
  DeviceOptions short_flowlets = options(kA);
  short_flowlets.flowlet_bytes = 20'000;
  SoftOptions of_a;
  of_a.address = kA;
  OneFlowletBackend::Log log{.awaited = kPeers};
  Device a(short_flowlets, std::make_unique<OneFlowletBackend>(of_a, log));
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<Joined> joined;
  for (std::uint32_t i = 0; i < kPeers; ++i) {
    devices.push_back(std::make_unique<Device>(options(kB + i)));
    joined.emplace_back(a, *devices.back());
  }
  const Bytes out = random_fill(1, kFlowlets * 20'000);
  std::vector<MessagePtr> messages;
  messages.reserve(2 * kPeers);
  for (const Joined& to : joined) messages.push_back(to.send(out));
  for (const Joined& to : joined) messages.push_back(to.receive(Bytes(out.size())));
  for (const MessagePtr& message : messages) {
    require_done(message);
    CHECK(message->memory == out);
  }
  REQUIRE(log.flowlets.size() == kPeers * kFlowlets);
  for (std::size_t round = 0; round < kFlowlets; ++round) {
    const auto first = log.flowlets.begin() + static_cast<std::ptrdiff_t>(round * kPeers);
    CHECK(std::set<IpAddress>(first, first + kPeers).size() == kPeers);
  }
}

/// `soft`, but after each flowlet its lane sends no packet for a while, as where its window is below one packet.
class PacedBackend final : public SoftBackend {
 public:
  struct Log {
    unsigned flowlets = 0;
    unsigned early = 0;  ///< flowlets that were posted before a packet could leave
  };
  PacedBackend(const SoftOptions& options, Log& log) : SoftBackend(options), log_(log) {}
  void post(std::uint32_t qpn, const WorkRequest& request) override {
    if (request.kind == WorkKind::kWrite || request.kind == WorkKind::kWriteImm) {
      ++log_.flowlets;
      if (now() < ready_at_) ++log_.early;
      ready_at_ = now() + 20 * kMillisecond;
    }
    SoftBackend::post(qpn, request);
  }
  [[nodiscard]] PathEstimate estimate(std::uint32_t qpn) const override {
    PathEstimate out = SoftBackend::estimate(qpn);
    out.window = 0.25F;
    out.ready_at = ready_at_;
    return out;
  }

 private:
  Log& log_;
  Nanos ready_at_ = 0;
};

TEST_CASE("a flowlet waits until a packet of its lane may leave, and is then posted though nothing arrives") {
  constexpr unsigned kFlowlets = 8;
  DeviceOptions of_a = options(kA, 1);
  of_a.flowlet_bytes = 20'000;
  SoftOptions soft;
  soft.address = kA;
  PacedBackend::Log log;
  Device a(of_a, std::make_unique<PacedBackend>(soft, log));
  Device b(options(kB, 1));
  const Joined joined(a, b);
  const unsigned before = log.flowlets;
  const Bytes out = random_fill(1, kFlowlets * 20'000);
  const auto received = joined.receive(Bytes(out.size()));
  const auto sent = joined.send(out);
  require_done(received);
  require_done(sent);
  CHECK(received->memory == out);
  CHECK(log.flowlets - before == kFlowlets);
  CHECK(log.early == 0);
}

/// Options of a peer that hears nothing, and gives nobody up.
DeviceOptions of_deaf() {
  DeviceOptions out = options(kB, 1);
  out.faults.drop = 1;
  out.retry_time = 600 * kSecond;
  return out;
}

TEST_CASE("a silent peer holds up a host's lanes until it is given up" * of_soft()) {
  constexpr std::size_t kFlowletBytes = 64 * 1024;
  DeviceOptions of_host = options(kA, 1);
  of_host.policy.lanes_per = LanesPer::kHost;
  of_host.flowlet_bytes = kFlowletBytes;
  of_host.retry_time = 300 * kMillisecond;
  Device a(of_host);
  Device deaf(of_deaf());
  Device b(options(kB + 1, 1));
  const Joined to_deaf(a, deaf);
  const Joined to_b(a, b);
  const Bytes out = random_fill(1, 16 * kFlowletBytes);
  const auto never = to_deaf.receive(Bytes(out.size()));
  const auto lost = to_deaf.send(out);
  const auto under_way = [&a] {
    std::uint64_t bytes = 0;
    for (const LaneCounters& lane : a.counters().lanes) bytes += lane.outstanding_bytes;
    return bytes;
  };
  const auto given_up = [&lost] { return lost->state != State::kPending; };
  REQUIRE(eventually([&] { return under_way() == LaneChoice::kDepth * kFlowletBytes || given_up(); }));
  const auto received = to_b.receive(Bytes(out.size()));
  const auto sent = to_b.send(out);
  REQUIRE(eventually([&] {
    const State of_b = sent->state;
    if (given_up()) return true;
    CHECK_MESSAGE(of_b == State::kPending, "a message overtook the flowlets of the silent peer");
    return false;
  }));
  CHECK(lost->state == State::kFailed);
  require_done(sent);
  require_done(received);
  CHECK(received->memory == out);
}

TEST_CASE("short messages to a silent peer hold up none of a host's lanes" * of_soft()) {
  DeviceOptions of_host = options(kA, 1);
  of_host.policy.lanes_per = LanesPer::kHost;
  of_host.retry_time = 600 * kSecond;
  bool eager = true;
  std::size_t count = EagerSends::kShortRun + LaneChoice::kDepth;
  SUBCASE("sent eagerly") {}
  SUBCASE("written to receives") {
    of_host.eager_bytes = 0;
    eager = false;
    count = LaneChoice::kDepth;
  }
  Device a(of_host);
  Device deaf(of_deaf());
  Device b(options(kB + 1, 1));
  const Joined to_deaf(a, deaf);
  const Joined to_b(a, b);
  const Bytes brief = random_fill(1, 100);
  std::vector<MessagePtr> unanswered;
  std::vector<MessagePtr> copied;
  for (std::size_t i = 0; i < count; ++i) {
    if (!eager) unanswered.push_back(to_deaf.receive(Bytes(brief.size())));
    copied.push_back(to_deaf.send(brief));
  }
  for (const MessagePtr& message : copied) require_done(message);  // its copy is under way
  CHECK(a.counters().messages.eager_sends == (eager ? count : 0));
  CHECK(to_deaf.to->copies == count);
  const Bytes out = random_fill(2, 1'000'000);
  const auto received = to_b.receive(Bytes(out.size()));
  require_done(to_b.send(out));
  require_done(received);
  CHECK(received->memory == out);
}

}  // namespace
}  // namespace paralet
