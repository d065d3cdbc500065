// SPDX-License-Identifier: Apache-2.0
// Short sends, which are done before the peer has acknowledged them: their memory, their bound, failures, closes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/device_fixture.hpp"
#include "engine/send_copies.hpp"
#include "soft/soft_backend.hpp"

namespace paralet {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture

constexpr std::size_t kShort = SendCopies::kMostBytes;

/// `soft`, but it never says that the peer has acknowledged something.
class UnacknowledgedBackend final : public SoftBackend {
 public:
  using SoftBackend::SoftBackend;
  bool progress(Nanos t, std::vector<Completion>& completions) override {
    const bool any = SoftBackend::progress(t, completions);
    std::erase_if(completions, [](const Completion& done) { return done.kind == Completion::Kind::kSent; });
    return any;
  }
};

struct UnacknowledgedPair {
  Device a{options(kA), std::make_unique<UnacknowledgedBackend>(SoftOptions{.address = kA})};
  Device b{options(kB)};
};

/// So slow that copies wait in the engine for a while, cut into flowlets.
DeviceOptions slow_options() {
  DeviceOptions out = options(kA);
  out.line_rate_bps = 16e6;
  out.flowlet_bytes = 4096;
  out.mice_bytes = 1024;
  return out;
}

TEST_CASE("a short send is done once it has met its receive; a longer one when it is acknowledged") {
  UnacknowledgedPair pair;
  const Joined joined(pair.a, pair.b);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{8}, kShort}) {
    CAPTURE(bytes);
    const auto received = joined.receive(Bytes(bytes));
    const auto sent = joined.send(Bytes(bytes));
    CHECK(wait(sent) == State::kDone);
    CHECK(sent->bytes == bytes);
    require_done(received);
  }
  const auto longer = joined.receive(Bytes(kShort + 1));
  const auto longer_send = joined.send(Bytes(kShort + 1));
  require_done(longer);
  CHECK(longer_send->state == State::kPending);
  CHECK(pair.a.counters().messages.sends == 3);
  CHECK(joined.to->copies == 3);
}

TEST_CASE("the memory of a short send is the caller's once it is done") {
  DeviceOptions lossy = options(kB);
  lossy.faults.drop = 0.2;
  Device b(lossy);
  Device a(options(kA));
  const Joined joined(a, b);
  std::vector<MessagePtr> received;
  for (std::uint32_t i = 0; i < 100; ++i) {
    received.push_back(joined.receive(Bytes(9000)));
    const auto sent = joined.send(random_fill(i, 9000));
    require_done(sent);
    std::ranges::fill(sent->memory, std::byte{0});
  }
  for (std::uint32_t i = 0; i < 100; ++i) {
    CAPTURE(i);
    require_done(received[i]);
    CHECK(received[i]->memory == random_fill(i, 9000));
  }
  CHECK(eventually([&] { return joined.to->copies == 0; }));
}

TEST_CASE("registered memory of short sends that are done may be deregistered, and no connection is closed") {
  UnacknowledgedPair pair;
  const Joined joined(pair.a, pair.b);
  Bytes memory(100);
  const std::uint32_t rkey = pair.a.register_memory(memory.data(), memory.size());
  const auto received = joined.receive(Bytes(100));
  auto sent = std::make_shared<Request>();
  sent->connection = joined.to;
  sent->data = memory.data();
  sent->length = memory.size();
  sent->rkey = rkey;
  pair.a.submit(sent);
  require_done(sent);
  CHECK(pair.a.deregister_memory(rkey).empty());
  CHECK(joined.to->state == Connection::State::kOpen);
}

TEST_CASE("a connection has a bounded number of copies") {
  UnacknowledgedPair pair;
  const Joined joined(pair.a, pair.b);
  const Joined neighbour(pair.a, pair.b);
  std::vector<MessagePtr> requests;
  for (unsigned i = 0; i < SendCopies::kMostOfConnection; ++i) {
    requests.push_back(joined.receive(Bytes(8)));
    requests.push_back(joined.send(Bytes(8)));
    require_done(requests.back());
  }
  const auto received = joined.receive(Bytes(8));
  const auto waiting = joined.send(Bytes(8));
  require_done(received);
  const auto other = neighbour.receive(Bytes(8));
  require_done(neighbour.send(Bytes(8)));
  CHECK(waiting->state == State::kPending);
  CHECK(joined.to->copies == SendCopies::kMostOfConnection);
}

TEST_CASE("when a peer is lost after a short send was done, the connection's next call says so") {
  DeviceOptions deaf = options(kB);
  deaf.faults.drop = 1;
  deaf.retry_time = 600 * kSecond;
  Device b(deaf);
  DeviceOptions impatient = options(kA);
  impatient.retry_time = 100 * kMillisecond;
  Device a(impatient);
  const Joined joined(a, b);
  const auto received = joined.receive(Bytes(8));
  require_done(joined.send(Bytes(8)));
  REQUIRE(eventually([&] { return joined.to->failure != Failure::kNone; }));
  CHECK(joined.to->failure == Failure::kTransport);
  const auto next = joined.send(Bytes(8));
  CHECK(error_of(next) == joined.to->error);
  CHECK(error_of(next).find("127.0.0.2") != std::string::npos);
  CHECK(a.counters().messages.failed == 2);  // also the message whose send was done
  CHECK(joined.to->copies == 0);
}

TEST_CASE("a close sends the copies that still wait, and the other side's receives are done") {
  Device b(options(kB));
  Device a(slow_options());
  const Joined joined(a, b);
  std::vector<MessagePtr> received;
  for (std::uint32_t i = 0; i < 10; ++i) received.push_back(joined.receive(Bytes(kShort)));
  for (std::uint32_t i = 0; i < 10; ++i) require_done(joined.send(random_fill(i, kShort)));
  const auto unmatched = joined.send(Bytes(kShort + 1));
  CHECK(joined.to->copies > 0);
  a.close_connection(joined.to);
  CHECK(error_of(unmatched) == "the connection was closed");
  for (std::uint32_t i = 0; i < 10; ++i) {
    CAPTURE(i);
    require_done(received[i]);
    CHECK(received[i]->memory == random_fill(i, kShort));
  }
  CHECK(eventually([&] { return joined.to->state == Connection::State::kClosed; }));
}

TEST_CASE("close_and_wait waits until copies are acknowledged") {
  Device b(options(kB));
  Device a(slow_options());
  const Joined joined(a, b);
  std::vector<MessagePtr> received;
  for (std::uint32_t i = 0; i < 5; ++i) received.push_back(joined.receive(Bytes(kShort)));
  for (std::uint32_t i = 0; i < 5; ++i) require_done(joined.send(random_fill(i, kShort)));
  CHECK(joined.to->copies > 0);
  CHECK(a.close_and_wait(joined.to, {}, Device::Closing::kSent));
  CHECK(joined.to->copies == 0);
  for (const auto& request : received) require_done(request);
}

TEST_CASE("a peer that closes ends the copies that still wait for it") {
  Device b(options(kB));
  Device a(slow_options());
  const Joined joined(a, b);
  std::vector<MessagePtr> received;
  for (std::uint32_t i = 0; i < 20; ++i) received.push_back(joined.receive(Bytes(kShort)));
  for (std::uint32_t i = 0; i < 20; ++i) require_done(joined.send(Bytes(kShort)));
  b.close_connection(joined.from);
  CHECK(eventually([&] { return joined.from->state == Connection::State::kClosed; }));
  CHECK(error_of(joined.send(Bytes(8))) == "127.0.0.2 closed the connection");
  CHECK(joined.to->copies == 0);
  const Joined again(a, b);
  again.check(5000);
}

}  // namespace
}  // namespace paralet
