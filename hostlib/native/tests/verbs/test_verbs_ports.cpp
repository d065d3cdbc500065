// SPDX-License-Identifier: Apache-2.0
// The `verbs` back end over a fake libibverbs: ports and their addresses, events, ECE and source ports.
#include <doctest/doctest.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <mutex>
#include <utility>

#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "verbs/verbs_backend.hpp"
#include "verbs_scene.hpp"
#include "wire/flow_label.hpp"

namespace paralet {
namespace {

using fake_verbs::nic;
using fake_verbs::record;
using test::backend_options;
using test::Bytes;
using test::place_of;
using test::times;
using test::VerbsPair;
using State = Request::State;

TEST_CASE("queue pairs have the partition key that the options name") {
  for (const unsigned index : {0U, 7U}) {
    fake_verbs::reset();
    DeviceOptions options = test::verbs_options(2);
    options.rdma.pkey_index = index;
    VerbsPair pair(options);
    pair.check(100);
    CHECK(record().pkeys == std::vector<unsigned>(4, index));
  }
}

TEST_CASE("a device has the GID of its IPv6 address, and reaches the GIDs of its peers' addresses") {
  fake_verbs::reset();
  const IpAddress local = *parse_address("::1");
  if (!interface_of(local)) {
    MESSAGE("skipped: the loopback interface has no address ::1");
    return;
  }
  DeviceOptions options = test::verbs_options(2);
  options.address = local;
  VerbsPair pair(options);
  for (const std::size_t length : {0U, 100U, 100'000U}) pair.check(length);
  const std::string gid(local.bytes().begin(), local.bytes().end());
  CHECK(record().gids == std::vector<std::pair<unsigned, std::string>>(4, {5U, gid}));
  CHECK(pair.to->peer_address == local);
}

TEST_CASE("ports are listed by the addresses of their GIDs, but the link-local ones") {
  fake_verbs::reset();
  const auto ports = verbs_ports();
  REQUIRE(ports.size() == 2);
  CHECK(ports[0].address == IpAddress(fake_verbs::kAddress));
  CHECK(ports[0].gid_index == 3);
  CHECK(ports[1].address == *parse_address("::1"));
  CHECK(ports[1].gid_index == 5);
}

TEST_CASE("an InfiniBand port is refused in a sentence") {
  fake_verbs::reset();
  nic().infiniband = true;
  CHECK_THROWS_WITH_AS(
      open_verbs(backend_options()),
      "no RDMA device has a RoCEv2 GID for 127.0.0.1; port 1 of fake0 has InfiniBand as its link layer, "
      "and this transport needs Ethernet (RoCEv2)",
      DeviceError);
}

TEST_CASE("a GID index without a RoCEv2 GID is refused in a sentence") {
  fake_verbs::reset();
  VerbsOptions options = backend_options();
  options.gid_index = 7;
  CHECK_THROWS_WITH_AS(open_verbs(options),
                       "GID index 7 of fake0, which has 127.0.0.1, is not a RoCEv2 GID: `paralet doctor` lists them",
                       DeviceError);
}

// -- events of the NIC --------------------------------------------------------------------------------------------

/// An event comes while a receive is pending. Whether the receive fails for that reason. Its own device may see the
/// event first, or learn it from the other device, which has the same NIC. The set-up has the retry time too, so even a
/// busy machine must not take that long for it.
bool fails(int event, std::uint32_t number, const std::string& reason, Nanos retry_time = 60 * kSecond) {
  DeviceOptions options = test::verbs_options(1);
  options.retry_time = retry_time;
  options.log = [](const std::string&) {};
  VerbsPair pair(options);
  pair.check(100);
  Bytes in(100);
  const auto receive = VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = in});
  fake_verbs::happen(event, number);
  REQUIRE(VerbsPair::end(receive) == State::kFailed);
  CHECK(test::eventually([&] { return pair.from->state == Connection::State::kClosed; }));
  INFO(receive->error);
  return receive->error.ends_with("lane 0 to 127.0.0.1: " + reason);
}

TEST_CASE("a failed NIC and a port that goes down end the requests and connections of the device") {
  fake_verbs::reset();
  CHECK(fails(IBV_EVENT_DEVICE_FATAL, 0, "the RDMA device failed"));
  CHECK(fails(IBV_EVENT_PORT_ERR, 1, "the RDMA port is down and did not come back within the retry time", 2 * kSecond));
}

TEST_CASE("a failed queue pair ends the requests of its lane") {
  fake_verbs::reset();
  CHECK(fails(IBV_EVENT_QP_FATAL, 18, "the RDMA device failed"));
}

TEST_CASE("a link that flaps is ridden out, and both edges are reported") {
  fake_verbs::reset();
  DeviceOptions options = test::verbs_options(1);
  std::mutex mutex;
  std::vector<std::string> said;
  options.log = [&](const std::string& sentence) {
    const std::lock_guard lock(mutex);
    said.push_back(sentence);
  };
  const auto times_said = [&](const std::string& part) {
    const std::lock_guard lock(mutex);
    return std::ranges::count_if(said, [&](const auto& each) { return each.find(part) != std::string::npos; });
  };
  VerbsPair pair(options);
  pair.check(100);
  for (int flap = 1; flap <= 2; ++flap) {
    Bytes in(100'000);
    Bytes out = test::random_fill(1, in.size());
    const auto receive = VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = in});
    fake_verbs::happen(IBV_EVENT_PORT_ERR, 1);
    fake_verbs::happen(IBV_EVENT_PORT_ERR, 1);  // drivers may repeat it
    CHECK(test::eventually([&] { return times_said("port 1 of fake0 (127.0.0.1) went down: ") == 2 * flap; }));
    fake_verbs::happen(IBV_EVENT_PORT_ACTIVE, 1);
    CHECK(test::eventually([&] { return times_said("port 1 of fake0 (127.0.0.1) is up again after ") == 2 * flap; }));
    const auto send = VerbsPair::submit(pair.one, pair.to, Request::Kind::kSend, {.bytes = out});
    CHECK(VerbsPair::end(send) == State::kDone);
    CHECK(VerbsPair::end(receive) == State::kDone);
    CHECK(in == out);
  }
  CHECK(times_said("") == 8);  // of two devices
}

/// Messages while the path of a lane's port is bad, and the NIC breaks the queue pairs that send with that port.
/// Whether all arrive once the path is good.
void check_break(unsigned lanes, bool mlx5, fake_verbs::Path path) {
  CAPTURE(lanes);
  CAPTURE(mlx5);
  CAPTURE(static_cast<int>(path));
  fake_verbs::reset();
  if (mlx5) nic().sport_error = 0;
  VerbsPair pair(test::verbs_options(lanes));
  pair.check(100);
  const LaneCounters before = pair.one.counters().lanes.at(0);
  std::vector<Bytes> out;
  std::vector<Bytes> in(8 * lanes, Bytes(30'000));
  for (std::size_t i = 0; i < in.size(); ++i) out.push_back(test::random_fill(i, in[i].size()));
  std::vector<std::shared_ptr<Request>> requests;
  const auto exchange = [&] {
    requests.clear();
    for (std::size_t i = 0; i < in.size(); ++i) {
      std::ranges::fill(in[i], std::byte{0});
      requests.push_back(VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = in[i]}));
      requests.push_back(VerbsPair::submit(pair.one, pair.to, Request::Kind::kSend, {.bytes = out[i]}));
    }
  };
  const auto pending = [](const std::shared_ptr<Request>& request) { return request->state == State::kPending; };
  const auto lost = [] { return record().lost > 0; };
  for (int round = 0; round < 3; ++round) {
    fake_verbs::set_path(pair.one.counters().lanes.at(0).qp.port, path);
    exchange();
    // Lanes pull by their estimates, so the others may carry all before the first one pulls.
    for (int again = 0; again < 1000 && !lost(); ++again) {
      REQUIRE(test::eventually([&] { return lost() || std::ranges::none_of(requests, pending); }));
      if (!lost()) exchange();
    }
    REQUIRE(lost());
    fake_verbs::break_queue_pairs(before.qp.port);
    fake_verbs::set_path(before.qp.port, fake_verbs::Path::kGood);
    for (const auto& request : requests) REQUIRE_MESSAGE(VerbsPair::end(request) == State::kDone, request->error);
    REQUIRE(in == out);
  }
  const LaneCounters after = pair.one.counters().lanes.at(0);
  CHECK(after.qpn != before.qpn);
  CHECK(after.qp.port == before.qp.port);
  CHECK(after.moves == 0);
  CHECK(test::eventually([&] { return record().queue_pairs == 2 * lanes; }));  // broken ones are gone
}

TEST_CASE("a queue pair that the NIC breaks is replaced, and no flowlet is lost or counted twice") {
  for (const unsigned lanes : {1U, 4U}) {
    for (const bool mlx5 : {false, true}) {
      for (const auto path : {fake_verbs::Path::kDead, fake_verbs::Path::kMute}) check_break(lanes, mlx5, path);
    }
  }
}

TEST_CASE("a lane whose queue pairs keep breaking gives its peer up, and says why") {
  fake_verbs::reset();
  VerbsPair pair(1);
  pair.check(100);
  const std::uint16_t port = pair.one.counters().lanes.at(0).qp.port;
  fake_verbs::set_path(port, fake_verbs::Path::kDead);
  Bytes in(100);
  Bytes out(100);
  const auto receive = VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = in});
  const auto send = VerbsPair::submit(pair.one, pair.to, Request::Kind::kSend, {.bytes = out});
  REQUIRE(test::eventually([&] {
    if (record().lost > 0) fake_verbs::break_queue_pairs(port);
    return send->state != State::kPending;
  }));
  CHECK(send->failure == Failure::kDevice);
  CHECK(send->error == "lane 0 to 127.0.0.1: the RDMA device ended its queue pair 9 times in a row and gave no reason");
  CHECK(VerbsPair::end(receive) == State::kFailed);
}

/// Ends all TCP connections of this process, as the kernel does when nothing has come through for too long.
void end_tcp_connections() {
  constexpr int kMostDescriptors = 1024;
  for (int fd = 0; fd < kMostDescriptors; ++fd) {
    sockaddr_in peer{};
    socklen_t length = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0 && peer.sin_family == AF_INET) {
      ::shutdown(fd, SHUT_RDWR);
    }
  }
}

TEST_CASE("a peer that is lost while the port is down, or soon after, is reported as the port's failure") {
  for (const bool back : {false, true}) {
    CAPTURE(back);
    fake_verbs::reset();
    std::atomic<int> edges{0};
    DeviceOptions options = test::verbs_options(1);
    options.retry_time = 60 * kSecond;
    options.log = [&](const std::string&) { ++edges; };
    VerbsPair pair(options);
    pair.check(100);
    Bytes in(100);
    const auto receive = VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = in});
    fake_verbs::happen(IBV_EVENT_PORT_ERR, 1);
    if (back) fake_verbs::happen(IBV_EVENT_PORT_ACTIVE, 1);
    REQUIRE(test::eventually([&] { return edges == (back ? 4 : 2); }));  // of two devices
    end_tcp_connections();
    REQUIRE(VerbsPair::end(receive) == State::kFailed);
    CHECK(receive->failure == Failure::kDevice);
    const std::string trouble = back ? "the RDMA port was down" : "the RDMA port is down";
    CHECK(receive->error == trouble + ", and 127.0.0.1 went away: the peer closed the connection");
  }
}

TEST_CASE("another port of the NIC that goes down has no effect") {
  fake_verbs::reset();
  VerbsPair pair(1);
  fake_verbs::happen(IBV_EVENT_PORT_ERR, 2);
  pair.check(100);
}

// -- enhanced connection establishment ---------------------------------------------------------------------------

TEST_CASE("ECE is offered, agreed on before the queue pairs are connected, and the result is returned") {
  fake_verbs::reset();
  VerbsPair pair(1);
  pair.check(100);
  CHECK(times("set_ece") == 2);
  // QP 17 connects: it offers ECE and applies what QP 18 agreed to.
  CHECK(place_of("query_ece 17") < place_of("set_ece 18 0x35"));
  CHECK(place_of("set_ece 18") < place_of("rtr 18"));
  CHECK(place_of("rtr 18") < place_of("query_ece 18"));
  CHECK(place_of("query_ece 18") < place_of("set_ece 17 0x31"));
  CHECK(place_of("set_ece 17") < place_of("rtr 17"));
}

TEST_CASE("without an ECE offer none is set") {
  fake_verbs::reset();
  nic().ece_vendor = 0;
  VerbsPair pair(1);
  pair.check(100);
  CHECK(times("set_ece") == 0);
}

TEST_CASE("an ECE that the NIC rejects is ignored") {
  fake_verbs::reset();
  nic().ece_error = EINVAL;
  VerbsPair pair(1);
  pair.check(100);
  CHECK(times("set_ece") == 2);
}

// -- source ports ------------------------------------------------------------------------------------------------

TEST_CASE("the flow label carries the source port, and another port needs a new queue pair") {
  fake_verbs::reset();
  VerbsPair pair(1);
  pair.check(100);
  const LaneCounters before = pair.one.counters().lanes.at(0);
  CHECK(before.method == PortMethod::kFlowLabel);
  const auto labels = record().labels;
  CHECK(std::ranges::count(labels, flow_label_of_port(before.qp.port)) >= 1);
  REQUIRE(pair.one.set_port(fake_verbs::kAddress, 0, 0xE333));
  REQUIRE(test::eventually([&] { return pair.one.counters().lanes.at(0).qp.port == 0xE333; }));
  pair.check(100'000);
  CHECK(record().labels.size() == 4);
  CHECK(std::ranges::count(record().labels, flow_label_of_port(0xE333)) == 1);
  CHECK(pair.one.counters().lanes.at(0).qpn != before.qpn);
  CHECK(test::eventually([] { return record().queue_pairs == 2; }));  // the old ones are gone
}

TEST_CASE("a lane gets a fresh queue pair at most once in 5 ms, whichever side asks") {
  fake_verbs::reset();
  VerbsPair pair(1);
  pair.check(100);
  constexpr unsigned kMoves = 20;
  const Nanos begin = now();
  for (unsigned i = 0; i < kMoves; ++i) {
    Device& mover = i % 2 == 0 ? pair.one : pair.two;
    const auto port = static_cast<std::uint16_t>(0xE000 + i);
    REQUIRE(mover.set_port(fake_verbs::kAddress, 0, port));
    REQUIRE(test::eventually([&] { return mover.counters().lanes.at(0).qp.port == port; }));
  }
  CHECK(now() - begin >= (kMoves - 1) * 5 * kMillisecond);
  pair.check(100'000);
  CHECK(record().labels.size() == 2 + 2 * kMoves);
  CHECK(test::eventually([] { return record().queue_pairs == 2; }));
}

TEST_CASE("mlx5's call sets the port of a ready queue pair, and changes it without a new queue pair") {
  fake_verbs::reset();
  nic().sport_error = 0;
  VerbsPair pair(1);
  pair.check(100);
  const LaneCounters before = pair.one.counters().lanes.at(0);
  CHECK(before.method == PortMethod::kModifyQp);
  const std::string qpn = std::to_string(before.qpn);
  CHECK(place_of("rts " + qpn) < place_of("sport " + qpn + " " + std::to_string(before.qp.port)));
  REQUIRE(pair.one.set_port(fake_verbs::kAddress, 0, 0xE333));
  pair.check(100'000);
  const LaneCounters after = pair.one.counters().lanes.at(0);
  CHECK(after.qp.port == 0xE333);
  CHECK(after.qpn == before.qpn);
  CHECK(after.moves == 1);
  CHECK(times("sport " + qpn + " " + std::to_string(0xE333)) == 1);
  CHECK(record().labels.size() == 2);
}

TEST_CASE("when mlx5's call fails the lane keeps its port, and the counters show that port") {
  fake_verbs::reset();
  nic().sport_error = 0;
  VerbsPair pair(1);
  const LaneCounters before = pair.one.counters().lanes.at(0);
  nic().sport_error = EINVAL;
  REQUIRE(pair.one.set_port(fake_verbs::kAddress, 0, 0xE333));
  pair.check(100);
  CHECK(pair.one.counters().lanes.at(0).qp.port == before.qp.port);
  CHECK(pair.one.counters().lanes.at(0).moves == 0);
}

}  // namespace
}  // namespace paralet
