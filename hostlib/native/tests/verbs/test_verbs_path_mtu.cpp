// SPDX-License-Identifier: Apache-2.0
// The `verbs` back end over a fake libibverbs: the path MTU follows the route to a peer.
#include <doctest/doctest.h>

#include <atomic>
#include <optional>
#include <string>

#include "base/mutex.hpp"
#include "verbs_scene.hpp"

namespace paralet {
namespace {

using fake_verbs::record;
using test::backend_options;
using test::Bytes;
using test::VerbsPair;

constexpr unsigned kNicGid = 3;  // of 127.0.0.1

TEST_CASE("the path MTU to a peer fits the port, and the route where it takes shorter packets") {
  fake_verbs::reset();
  constexpr std::uint32_t kOfPort = 1024;
  const IpAddress remote = *parse_address("192.0.2.7");
  VerbsOptions options = backend_options();
  std::optional<std::uint32_t> mtu;
  options.ask_route = [&](const UdpEnd& from, const UdpEnd& to) {
    CHECK(from.address == options.address);
    CHECK(to.address == remote);
    return mtu;
  };
  const auto opened = open_verbs(options);
  CHECK(opened->path_mtu_to(0, remote) == kOfPort);  // no route is known
  mtu = 9000;
  CHECK(opened->path_mtu_to(0, remote) == kOfPort);
  mtu = 1024;  // no room for the headers
  CHECK(opened->path_mtu_to(0, remote) == 512);
  mtu = 300;
  CHECK(opened->path_mtu_to(0, remote) == 256);
}

/// A route that becomes narrower, and what the log says about it.
struct NarrowingRoute {
  VerbsOptions options() {
    VerbsOptions out = backend_options();
    out.ask_route = [this](const UdpEnd&, const UdpEnd&) -> std::optional<std::uint32_t> { return mtu; };
    out.log = [this](const std::string& sentence) {
      const MutexLock guard(mutex);
      said += sentence + "\n";
    };
    return out;
  }
  /// The network loses longer packets, and the host's route says so.
  void become_narrower() {
    fake_verbs::narrow_route(512);
    mtu = 600;
  }
  std::string heard() {
    const MutexLock guard(mutex);
    return said;
  }

  std::atomic<std::uint32_t> mtu{9000};
  Mutex mutex;
  std::string said;
};

TEST_CASE("when the route becomes narrower, lanes get queue pairs with shorter packets and every byte arrives once") {
  for (const bool nic_gives_up : {false, true}) {
    CAPTURE(nic_gives_up);
    fake_verbs::reset();
    NarrowingRoute route;
    DeviceOptions options = test::verbs_options(2);
    options.flowlet_bytes = 20'000;
    VerbsPair pair(
        options, [] {}, open_verbs(route.options()));
    pair.check(100'000);
    CHECK(route.heard().empty());
    route.become_narrower();
    const Bytes out = test::random_fill(1, 300'000);
    Bytes in(out.size());
    Bytes from = out;
    const auto receive = VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = in});
    const auto send = VerbsPair::submit(pair.one, pair.to, Request::Kind::kSend, {.bytes = from});
    if (nic_gives_up) {
      REQUIRE(test::eventually([] { return record().lost > 0; }));
      fake_verbs::end_retries(kNicGid);
    }
    pair.require_done(send);
    pair.require_done(receive);
    CHECK(in == out);
    for (int i = 0; i < 4; ++i) pair.check(100'000);
    CHECK(record().lost == 0);
    CHECK(test::eventually([] { return record().queue_pairs == 4; }));
    CHECK(route.heard() ==
          "the route to 127.0.0.1 takes only shorter packets now: lanes go over to path MTU 512, which costs "
          "throughput\n");
  }
}

TEST_CASE("a path that is dead and not narrower is still told as such") {
  fake_verbs::reset();
  NarrowingRoute route;
  VerbsPair pair(
      test::verbs_options(1), [] {}, open_verbs(route.options()));
  pair.check(100'000);
  fake_verbs::narrow_route(512);  // a black hole: the host's route says nothing
  Bytes bytes(100'000);
  const auto receive = VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = bytes});
  Bytes from(bytes.size());
  const auto send = VerbsPair::submit(pair.one, pair.to, Request::Kind::kSend, {.bytes = from});
  REQUIRE(test::eventually([] { return record().lost > 0; }));
  fake_verbs::end_retries(kNicGid);
  CHECK(VerbsPair::end(send) == Request::State::kFailed);
  CHECK(send->error.find("the peer did not answer within the retry time") != std::string::npos);
  CHECK(VerbsPair::end(receive) == Request::State::kFailed);
  CHECK(route.heard().empty());
}

}  // namespace
}  // namespace paralet
