// SPDX-License-Identifier: Apache-2.0
// The `verbs` back end over a fake libibverbs: its calls, and how it handles the results.
#include <doctest/doctest.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "base/errors.hpp"
#include "verbs/verbs_backend.hpp"
#include "verbs_scene.hpp"
#include "wire/flow_label.hpp"

namespace paralet {
namespace {

using fake_verbs::nic;
using fake_verbs::record;
using test::Bytes;
using test::VerbsPair;
using State = Request::State;

VerbsOptions backend_options() {
  VerbsOptions out;
  out.address = fake_verbs::kAddress;
  return out;
}

/// Index of the first call that starts with `beginning`. The test fails when there is none.
std::size_t place_of(const std::string& beginning) {
  const auto calls = record().calls;
  const auto found = std::ranges::find_if(calls, [&](const auto& call) { return call.starts_with(beginning); });
  REQUIRE_MESSAGE(found != calls.end(), beginning);
  return static_cast<std::size_t>(found - calls.begin());
}

std::size_t times(const std::string& beginning) {
  const auto calls = record().calls;
  return static_cast<std::size_t>(
      std::ranges::count_if(calls, [&](const auto& call) { return call.starts_with(beginning); }));
}

TEST_CASE("messages of all sizes arrive") {
  fake_verbs::reset();
  VerbsPair pair;
  for (const std::size_t length : {0U, 1U, 64U, 65U, 4096U, 1'000'000U}) pair.check(length);
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
  }
  std::vector<ReceiveBuffer> buffers(200);
  Bytes room(buffers.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) backend->post_receive({&room[i], 1, i});
  nic().holds = true;
  constexpr std::size_t kEach = 50;
  const Bytes payload(64, std::byte{7});
  for (std::size_t i = 0; i < kEach; ++i) {
    for (const QpIdentity& qp : qps) {
      backend->post(qp.qpn, {.kind = WorkKind::kWrite,
                             .cookie = 1 + i,
                             .data = payload.data(),
                             .length = static_cast<std::uint32_t>(payload.size()),
                             .remote_address = backend->remote_address(rkey),
                             .rkey = rkey});
      backend->flush(now());
    }
  }
  CHECK(record().most_work <= 64);
  CHECK(record().most_work > 32);  // the room is used
  nic().holds = false;
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

// -- registered memory -------------------------------------------------------------------------------------------

TEST_CASE("ibv_fork_init comes before all other calls") {
  VerbsPair pair(1);
  CHECK(record().fork_safe);
}

TEST_CASE("memory is registered on kernels with any page size") {
  for (const std::uint64_t page_bytes : {4096U, 16384U, 65536U}) {
    fake_verbs::reset();
    nic().page_bytes = page_bytes;
    VerbsOptions options = backend_options();
    options.page_bytes = page_bytes;
    const auto backend = open_verbs(options);
    Bytes memory(200'000);
    for (const std::size_t offset : {0U, 4096U, 5000U, 70'000U}) {
      CAPTURE(page_bytes);
      const std::uint32_t rkey = backend->register_memory(memory.data() + offset, 100'000);
      CHECK((reinterpret_cast<std::uint64_t>(memory.data() + offset) - backend->remote_address(rkey)) % page_bytes ==
            0);
      CHECK(backend->remote_address(rkey) < page_bytes);  // peers need not know more of the address
      backend->deregister_memory(rkey);
    }
  }
}

// -- memory of other devices -------------------------------------------------------------------------------------

TEST_CASE("messages use another device's memory through its dma-buf, and no processor touches it") {
  fake_verbs::reset();
  Bytes source(1 << 20);
  Bytes target(1 << 20);
  fake_verbs::share_device_memory(901, source.data(), source.size());
  fake_verbs::share_device_memory(902, target.data(), target.size());
  VerbsPair pair;
  // The addresses are only names: they are never dereferenced.
  constexpr std::uint64_t kOffset = 4096;
  const std::uint64_t length = source.size() - kOffset;
  const std::uint32_t from = pair.one.register_device_memory(source.data() + kOffset, length, DmaBuf{901, kOffset});
  const std::uint32_t to = pair.two.register_device_memory(target.data() + kOffset, length, DmaBuf{902, kOffset});
  std::uint64_t offset = 0;
  for (const std::size_t size : {0U, 8U, 64U, 65U, 500'000U}) {
    std::ranges::copy(test::random_fill(size, size), source.data() + kOffset + offset);
    pair.check({.bytes = std::span(source).subspan(kOffset + offset, size), .rkey = from, .offset = offset},
               {.bytes = std::span(target).subspan(kOffset + offset, size), .rkey = to, .offset = offset});
    offset += size;
  }
  CHECK(record().inlined_from_device == 0);
  pair.one.deregister_memory(from);
  pair.two.deregister_memory(to);
}

TEST_CASE("a fence completes with a READ of the memory") {
  fake_verbs::reset();
  Bytes memory(4096);
  fake_verbs::share_device_memory(901, memory.data(), memory.size());
  Device device(test::verbs_options(2));
  const auto fence = [&](std::uint32_t rkey) {
    return VerbsPair::submit(device, nullptr, Request::Kind::kFence, {.bytes = {}, .rkey = rkey, .offset = 100});
  };
  const std::uint32_t rkey = device.register_device_memory(memory.data(), memory.size(), DmaBuf{901, 0});
  for (int i = 0; i < 3; ++i) CHECK(VerbsPair::end(fence(rkey)) == State::kDone);
  CHECK(record().reads == 3);
  CHECK(record().queue_pairs == 1);
  CHECK(device.counters().messages.receives == 0);

  const auto wrong = fence(rkey + 1000);
  CHECK(VerbsPair::end(wrong) == State::kFailed);
  CHECK(wrong->failure == Failure::kDevice);
  CHECK(VerbsPair::end(fence(rkey)) == State::kDone);  // a failed fence does not affect later ones
  CHECK(record().queue_pairs == 1);

  device.close(0);
  const auto late = fence(rkey);
  CHECK(VerbsPair::end(late) == State::kFailed);
}

TEST_CASE("closing the device ends a pending fence") {
  fake_verbs::reset();
  Bytes memory(4096);
  fake_verbs::share_device_memory(901, memory.data(), memory.size());
  Device device(test::verbs_options(2));
  const std::uint32_t rkey = device.register_device_memory(memory.data(), memory.size(), DmaBuf{901, 0});
  nic().holds = true;
  const auto fence = VerbsPair::submit(device, nullptr, Request::Kind::kFence, {.bytes = {}, .rkey = rkey});
  device.close(0);
  CHECK(VerbsPair::end(fence) == State::kFailed);
  CHECK(fence->error == "the device was closed");
}

TEST_CASE("dma-buf support is detected as NCCL does it, and nothing stays registered") {
  fake_verbs::reset();
  for (const auto& [error, takes] :
       {std::pair(0, true), {EBADF, true}, {EOPNOTSUPP, false}, {EPROTONOSUPPORT, false}}) {
    nic().dmabuf_error = error;
    CHECK(verbs_ports().at(0).dmabuf == takes);
  }
  CHECK(record().regions == 0);
}

TEST_CASE("registering an invalid dma-buf is an error with a reason") {
  fake_verbs::reset();
  Device device(test::verbs_options(2));
  std::byte name{};
  CHECK_THROWS_WITH_AS(device.register_device_memory(&name, 4096, DmaBuf{903, 0}),
                       "fake0 cannot register a dma-buf: Bad file descriptor", DeviceError);
  DeviceOptions soft;
  soft.address = fake_verbs::kAddress;
  Device other(soft);
  CHECK_THROWS_WITH_AS(other.register_device_memory(&name, 4096, DmaBuf{903, 0}),
                       "this back end takes host memory only", DeviceError);
}

// -- events of the NIC --------------------------------------------------------------------------------------------

/// An event comes while a receive is pending. Whether the receive fails for that reason. Its own device may see the
/// event first, or learn it from the other device, which has the same NIC.
bool fails(int event, std::uint32_t number, const std::string& reason) {
  VerbsPair pair(1);
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
  CHECK(fails(IBV_EVENT_PORT_ERR, 1, "the RDMA port went down"));
}

TEST_CASE("a failed queue pair ends the requests of its lane") {
  fake_verbs::reset();
  CHECK(fails(IBV_EVENT_QP_FATAL, 18, "the RDMA device failed"));
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
