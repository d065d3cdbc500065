// SPDX-License-Identifier: Apache-2.0
// The `verbs` back end over a fake libibverbs: messages, completions, silence and receives.
#include <doctest/doctest.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "free_ports.hpp"
#include "prober/prober.hpp"
#include "verbs/verbs_backend.hpp"
#include "verbs_scene.hpp"
#include "wire/wire.hpp"

namespace paralet {
namespace {

using fake_verbs::nic;
using fake_verbs::record;
using test::backend_options;
using test::Bytes;
using test::VerbsPair;
using State = Request::State;

TEST_CASE("messages of all sizes arrive") {
  fake_verbs::reset();
  VerbsPair pair;
  for (const std::size_t length : {0U, 1U, 64U, 65U, 4096U, 1'000'000U}) pair.check(length);
}

TEST_CASE("probes to the NIC's address with the QPNs of lanes go to the kernel, and disturb no message") {
  fake_verbs::reset();
  VerbsPair pair;
  prober::Prober prober({.rate = 0, .router_rate = 0, .timeout = 10 * kMillisecond, .attempts = 1});
  const std::size_t target = prober.add(
      prober::Target{.from = fake_verbs::kAddress, .to = fake_verbs::kAddress, .destination_port = wire::kRocePort});
  const auto ports = test::free_ports(100);
  for (const LaneCounters& lane : pair.two.counters().lanes) {
    for (const std::uint16_t port : ports) {
      prober.add(prober::Probe{.target = target, .source_port = port, .ttl = 64, .qpn = lane.qpn});
    }
  }
  while (!prober.run(now() + kMillisecond)) pair.check(100'000);
  CHECK(prober.counters().sent == ports.size() * pair.two.counters().lanes.size());
  pair.check(1'000'000);
  CHECK(record().lost == 0);
  const auto lanes = pair.one.counters().lanes;
  CHECK(std::ranges::all_of(lanes, [](const LaneCounters& lane) { return lane.qp.counters.retransmits == 0; }));
}

// -- the completion queue ----------------------------------------------------------------------------------------

TEST_CASE("the NIC never holds more work than its completion queue has room for, with any number of queue pairs") {
  fake_verbs::reset();
  nic().completions = 64;
  const auto backend = open_verbs(backend_options());
  Bytes target(64);
  const std::uint32_t rkey = backend->register_memory(target.data(), target.size());
  std::vector<QpIdentity> qps(16);
  std::ranges::generate(qps, [&] { return backend->create_qp(); });
  for (std::size_t i = 0; i < qps.size(); ++i) {
    const QpIdentity& peer = qps[i ^ 1];
    REQUIRE(backend->connect_qp(qps[i].qpn,
                                {.address = fake_verbs::kAddress,
                                 .udp_port = 4791,
                                 .qpn = peer.qpn,
                                 .first_psn = peer.first_psn,
                                 .path_mtu = 1024},
                                0xC111));
    backend->adopt_qp(qps[i].qpn);
  }
  std::vector<ReceiveBuffer> buffers(200);
  Bytes room(buffers.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) backend->post_receive({&room[i], 1, i});
  fake_verbs::hold_completions(true);
  constexpr std::size_t kEach = 50;
  const Bytes payload(64, std::byte{7});
  for (std::size_t i = 0; i < kEach; ++i) {
    for (const QpIdentity& qp : qps) {
      backend->post(qp.qpn, {.kind = WorkKind::kWrite,
                             .cookie = 1 + i,
                             .data = payload.data(),
                             .length = static_cast<std::uint32_t>(payload.size()),
                             .remote_address = backend->remote_address(rkey),
                             .rkey = backend->remote_key(rkey)});
      backend->flush(now());
    }
  }
  CHECK(record().most_work <= 64);
  CHECK(record().most_work > 32);  // the room is used
  fake_verbs::hold_completions(false);
  std::map<std::uint32_t, std::size_t> done;
  std::vector<Completion> completions;
  for (int round = 0; round < 10'000 && completions.size() < qps.size() * kEach; ++round) {
    backend->progress(now(), completions);
    backend->flush(now());
  }
  for (const Completion& completion : completions) {
    CHECK(completion.status == Status::kSuccess);
    CHECK(completion.cookie == ++done[completion.qpn]);  // in order
  }
  CHECK(completions.size() == qps.size() * kEach);
  CHECK(record().most_work <= 64);
}

TEST_CASE("the port's rate cuts messages into flowlets of 4 BDP / m") {
  for (const auto& [width, speed, flowlets] :
       {std::tuple(2, 32, 8U), {2, 0, 1U}, {0, 32, 1U}}) {  // 100 Gbit/s, unknown
    fake_verbs::reset();
    nic().link_width = static_cast<std::uint8_t>(width);
    nic().link_speed = static_cast<std::uint8_t>(speed);
    DeviceOptions options = test::verbs_options(8);
    options.base_rtt = 10 * kMicrosecond;
    VerbsPair pair(options);
    pair.check(8 * 63'488);  // 62,500 bytes in whole packets
    unsigned sent = 0;
    for (const LaneCounters& lane : pair.one.counters().lanes) sent += static_cast<unsigned>(lane.flowlets);
    CHECK(sent == flowlets);
  }
}

TEST_CASE("the speed of an XDR port is read where the library knows it") {
  for (const auto& [bytes, flowlets] : {std::tuple(56, 5U), {52, 8U}, {0, 8U}}) {
    const int known = bytes;  // clang 14 captures no structured bindings
    CAPTURE(known);
    fake_verbs::reset();
    nic().link_width = 1;    // lane
    nic().link_speed = 128;  // 100 Gbit/s, the most that 8 bits can say
    nic().link_speed_ex = 256;
    nic().port_attributes = static_cast<std::size_t>(bytes);
    DeviceOptions options = test::verbs_options(8);
    options.base_rtt = 10 * kMicrosecond;
    VerbsPair pair(options);
    pair.check(8 * 63'488);  // 4 BDP / m: 62,500 bytes at 100 Gbit/s, 125,000 at 200, in whole packets
    unsigned sent = 0;
    for (const LaneCounters& lane : pair.one.counters().lanes) sent += static_cast<unsigned>(lane.flowlets);
    CHECK(sent == flowlets);
  }
}

// -- silence -----------------------------------------------------------------------------------------------------

/// Two connected queue pairs of one back end.
std::pair<std::uint32_t, std::uint32_t> connected_pair(Backend& backend) {
  const std::array qps{backend.create_qp(), backend.create_qp()};
  for (std::size_t i = 0; i < qps.size(); ++i) {
    const QpIdentity& peer = qps[1 - i];
    REQUIRE(backend.connect_qp(qps[i].qpn,
                               {.address = fake_verbs::kAddress,
                                .udp_port = 4791,
                                .qpn = peer.qpn,
                                .first_psn = peer.first_psn,
                                .path_mtu = 1024},
                               0xC111));
    backend.adopt_qp(qps[i].qpn);
  }
  return {qps[0].qpn, qps[1].qpn};
}

TEST_CASE("the silence of a queue pair counts as timeouts, which stay counted") {
  fake_verbs::reset();
  const auto backend = open_verbs(backend_options());
  const std::uint32_t qpn = connected_pair(*backend).first;
  std::vector<Completion> completions;
  fake_verbs::hold_completions(true);
  backend->post(qpn, {.kind = WorkKind::kWrite});
  backend->flush(now());
  CHECK(test::eventually([&] {
    backend->progress(now(), completions);
    return backend->statistics(qpn).counters.timeouts >= 2;
  }));
  CHECK(backend->estimate(qpn).smoothed_rtt >= 3 * 67 * kMillisecond);  // the second timeout is twice the first
  const std::uint64_t timeouts = backend->statistics(qpn).counters.timeouts;
  fake_verbs::hold_completions(false);
  CHECK(test::eventually([&] {
    backend->progress(now(), completions);
    return completions.size() == 1;
  }));
  CHECK(backend->statistics(qpn).counters.timeouts >= timeouts);
}

/// Messages while the path of a lane's port is bad. Whether all arrive, once each, and the lane leaves the port.
void check_black_hole(unsigned lanes, bool mlx5, fake_verbs::Path path) {
  CAPTURE(lanes);
  CAPTURE(mlx5);
  CAPTURE(static_cast<int>(path));
  fake_verbs::reset();
  if (mlx5) nic().sport_error = 0;
  DeviceOptions options = test::verbs_options(lanes);
  options.policy.kind = PolicyKind::kAdaptive;
  options.policy.seed = lanes;
  options.min_timeout = 10 * kMillisecond;
  VerbsPair pair(options);
  pair.check(100);
  const std::uint16_t bad = pair.one.counters().lanes.at(0).qp.port;
  fake_verbs::set_path(bad, path);
  std::vector<Bytes> out;
  std::vector<Bytes> in(4 * lanes, Bytes(30'000));
  for (std::size_t i = 0; i < in.size(); ++i) out.push_back(test::random_fill(i, in[i].size()));
  const auto moved = [&] { return pair.one.counters().lanes.at(0).qp.port != bad; };
  for (int round = 0; round < 100 && !moved(); ++round) {
    std::vector<std::shared_ptr<Request>> requests;
    for (std::size_t i = 0; i < in.size(); ++i) {
      std::ranges::fill(in[i], std::byte{0});
      requests.push_back(VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = in[i]}));
      requests.push_back(VerbsPair::submit(pair.one, pair.to, Request::Kind::kSend, {.bytes = out[i]}));
    }
    for (const auto& request : requests) REQUIRE_MESSAGE(VerbsPair::end(request) == State::kDone, request->error);
    REQUIRE(in == out);
  }
  CHECK(moved());
  CHECK(pair.one.counters().lanes.at(0).moves >= 1);
  CHECK(test::eventually([&] { return record().queue_pairs == 2 * lanes; }));  // replaced ones are gone
  fake_verbs::set_path(bad, fake_verbs::Path::kGood);
  pair.check(100'000);
}

TEST_CASE("adaptive lanes leave a dead path, and no flowlet is lost or counted twice") {
  for (const unsigned lanes : {1U, 4U, 32U}) {
    for (const bool mlx5 : {false, true}) {
      for (const auto path : {fake_verbs::Path::kDead, fake_verbs::Path::kMute}) check_black_hole(lanes, mlx5, path);
    }
  }
}

// test_send_queue.cpp has what adaptive lanes make of the times of such a mix.
TEST_CASE("short and long messages pass together over adaptive lanes") {
  fake_verbs::reset();
  nic().rtt_ns = 4'000'000;
  nic().ns_per_byte = 40;
  DeviceOptions options = test::verbs_options(4);
  options.policy.kind = PolicyKind::kAdaptive;
  options.policy.seed = 1;
  VerbsPair pair(options);
  std::vector<Bytes> out;
  std::vector<Bytes> in;
  for (std::size_t i = 0; i < 56; ++i) {
    out.push_back(test::random_fill(i, i % 7 == 0 ? 500'000 : 100));
    in.emplace_back(out.back().size());
  }
  std::vector<std::shared_ptr<Request>> requests;
  for (std::size_t i = 0; i < in.size(); ++i) {
    requests.push_back(VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = in[i]}));
    requests.push_back(VerbsPair::submit(pair.one, pair.to, Request::Kind::kSend, {.bytes = out[i]}));
  }
  for (const auto& request : requests) REQUIRE_MESSAGE(VerbsPair::end(request) == State::kDone, request->error);
  CHECK(in == out);
}

// -- receives ----------------------------------------------------------------------------------------------------

TEST_CASE("after 10,000 failed peers the shared receive queue is as full as before") {
  fake_verbs::reset();
  const auto backend = open_verbs(backend_options());
  std::vector<ReceiveBuffer> buffers(100);
  Bytes room(buffers.size() * 64);
  for (std::size_t i = 0; i < buffers.size(); ++i) backend->post_receive({&room[i * 64], 64, i});
  REQUIRE(record().receives == buffers.size());
  std::vector<Completion> completions;
  const Bytes payload(8, std::byte{1});
  for (int i = 0; i < 10'000; ++i) {
    const auto [from, to] = connected_pair(*backend);
    for (int message = 0; message < 3; ++message) {
      backend->post(from, {.kind = WorkKind::kSend, .data = payload.data(), .length = 8});
    }
    backend->flush(now());
    backend->destroy_qp(to);  // with completions that nobody has polled
    backend->destroy_qp(from);
    backend->progress(now(), completions);
    for (const Completion& completion : completions) {
      if (completion.kind == Completion::Kind::kReceivedSend) {
        backend->post_receive({&room[completion.cookie * 64], 64, completion.cookie});
      }
    }
    completions.clear();
    if (i % 1000 == 0) REQUIRE(record().receives == buffers.size());
  }
  CHECK(record().receives == buffers.size());
}

TEST_CASE("other queue pairs go on while the NIC has not returned what a destroyed one held") {
  fake_verbs::reset();
  const auto backend = open_verbs(backend_options());
  std::vector<ReceiveBuffer> buffers(10);
  Bytes room(buffers.size() * 64);
  for (std::size_t i = 0; i < buffers.size(); ++i) backend->post_receive({&room[i * 64], 64, i});
  const auto [dying, its_peer] = connected_pair(*backend);
  const auto [from, to] = connected_pair(*backend);
  const Bytes payload(8, std::byte{1});
  std::vector<Completion> completions;
  const Nanos t = now();  // the clock stands still: no deadline passes
  backend->post(its_peer, {.kind = WorkKind::kSend, .data = payload.data(), .length = 8});
  backend->flush(t);
  fake_verbs::hold_flushes(true);
  backend->destroy_qp(dying);
  CHECK(record().queue_pairs == 4);
  for (std::uint64_t message = 1; message <= 3; ++message) {
    backend->post(from, {.kind = WorkKind::kSend, .cookie = message, .data = payload.data(), .length = 8});
    backend->flush(t);
    backend->progress(t, completions);
    const auto received = [to = to](const Completion& each) {
      return each.qpn == to && each.kind == Completion::Kind::kReceivedSend;
    };
    CHECK(std::ranges::count_if(completions, received) == static_cast<std::ptrdiff_t>(message));
  }
  CHECK(record().queue_pairs == 4);
  fake_verbs::hold_flushes(false);
  backend->progress(t, completions);
  CHECK(test::eventually([] { return record().queue_pairs == 3; }));
  for (const Completion& each : completions) {
    if (each.kind == Completion::Kind::kReceivedSend) backend->post_receive({&room[each.cookie * 64], 64, each.cookie});
  }
  CHECK(record().receives == buffers.size());
}

TEST_CASE("a queue pair that the NIC never returns is destroyed after a deadline") {
  fake_verbs::reset();
  const auto backend = open_verbs(backend_options());
  const auto [dying, its_peer] = connected_pair(*backend);
  fake_verbs::hold_flushes(true);
  backend->destroy_qp(dying);
  CHECK(record().queue_pairs == 2);
  std::vector<Completion> completions;
  backend->progress(now() + kSecond, completions);
  CHECK(test::eventually([] { return record().queue_pairs == 1; }));
}

}  // namespace
}  // namespace paralet
