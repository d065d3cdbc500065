// SPDX-License-Identifier: Apache-2.0
// The soft back end by itself, over loopback sockets, driven by the test's thread.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <vector>

#include "bytes.hpp"
#include "soft_backend.hpp"

namespace paralet {
namespace {

using test::Bytes;

constexpr std::uint32_t kA = 0x7F000001;
constexpr std::uint32_t kB = 0x7F000002;
constexpr std::uint32_t kPathMtu = 256;

SoftOptions options(std::uint32_t address) {
  SoftOptions out;
  out.address = address;
  out.control.initial_window = 1;  // the second packet waits for an answer to the first
  return out;
}

struct Two {
  explicit Two(SoftOptions of_a = options(kA), std::uint32_t path_mtu = kPathMtu) : a(of_a), mtu(path_mtu) {}
  SoftBackend a;
  SoftBackend b{options(kB)};
  std::uint32_t mtu;
  std::vector<Completion> at_a;
  std::vector<Completion> at_b;

  struct Pair {
    std::uint32_t at_a;
    std::uint32_t at_b;
  };
  Pair connect(std::uint16_t port) {
    const QpIdentity one = a.create_qp();
    const QpIdentity other = b.create_qp();
    const auto remote = [this](std::uint32_t address, const SoftBackend& there, const QpIdentity& qp) {
      return RemoteQp{.address = address,
                      .udp_port = there.udp_port(),
                      .qpn = qp.qpn,
                      .first_psn = qp.first_psn,
                      .path_mtu = mtu,
                      .ece = {}};
    };
    REQUIRE(a.connect_qp(one.qpn, remote(kB, b, other), port));
    REQUIRE(b.connect_qp(other.qpn, remote(kA, a, one), port));
    return {one.qpn, other.qpn};
  }
  void send(std::uint32_t qpn, const Bytes& data) {
    a.post(qpn, {.kind = WorkKind::kSend, .data = data.data(), .length = static_cast<std::uint32_t>(data.size())});
    a.flush(now());
  }
  template <typename Condition>
  bool eventually(Condition condition, bool both) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > until) return false;
      b.progress(now(), at_b);
      b.settle(now());
      if (!both) continue;
      a.progress(now(), at_a);
      a.flush(now());
    }
    return true;
  }
};

TEST_CASE("a QP that goes in the middle of a SEND gives its receive buffer back") {
  Two two;
  Bytes memory(480);
  two.b.post_receive({.data = memory.data(), .length = 480, .cookie = 7});
  const Two::Pair broken = two.connect(0xD001);
  const Bytes half = test::random_fill(1, 400);
  two.send(broken.at_a, half);
  REQUIRE(two.eventually([&] { return two.b.statistics(broken.at_b).counters.rx_packets == 1; }, false));
  CHECK(two.at_b.empty());
  two.b.destroy_qp(broken.at_b);

  const Two::Pair whole = two.connect(0xD002);
  const Bytes message = test::random_fill(2, 400);
  two.send(whole.at_a, message);
  REQUIRE(two.eventually([&] { return !two.at_b.empty(); }, true));
  CHECK(two.at_b[0].kind == Completion::Kind::kReceivedSend);
  CHECK(two.at_b[0].cookie == 7);
  CHECK(Bytes(memory.begin(), memory.begin() + 400) == message);
}

TEST_CASE("a message of 256 KiB leaves whole before another QP has its turn") {
  constexpr std::uint32_t kBytes = 256 * 1024;
  SoftOptions of_a = options(kA);
  of_a.control.initial_window = 64;
  Two two(of_a, 4096);
  Bytes memory(2 * std::size_t{kBytes});
  const std::uint32_t rkey = two.b.register_memory(memory.data(), memory.size());
  const Bytes message = test::random_fill(3, kBytes);
  const std::array<Two::Pair, 2> pairs{two.connect(0xD003), two.connect(0xD004)};
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    two.a.post(pairs[i].at_a,
               {.data = message.data(), .length = kBytes, .remote_address = i * std::uint64_t{kBytes}, .rkey = rkey});
  }
  two.a.flush(now());
  two.b.progress(now(), two.at_b);  // what has come first
  CHECK(two.b.statistics(pairs[0].at_b).counters.rx_packets == 64);
  CHECK(Bytes(memory.begin(), memory.begin() + kBytes) == message);
}

TEST_CASE("a QP asks no sooner than answers on others of the same peer have lately taken") {
  SoftOptions of_a = options(kA);
  of_a.min_timeout = 200 * kMillisecond;
  Two two(of_a);
  const Bytes data = test::random_fill(4, 100);
  const auto write = [&](const Two::Pair& pair, Nanos at) {
    two.a.post(pair.at_a, {.data = data.data(), .rkey = 0});  // of nothing: needs no memory
    two.a.flush(at);
  };
  const auto answer = [&](Nanos at) {
    two.b.progress(at, two.at_b);
    two.b.settle(at);
    two.a.progress(at, two.at_a);
  };
  const auto asked = [&](const Two::Pair& pair, Nanos at) {
    two.a.progress(at, two.at_a);
    two.a.flush(at);
    return two.a.statistics(pair.at_a).counters.retransmits;
  };
  const Two::Pair quick = two.connect(0xD005);
  const Two::Pair slow = two.connect(0xD006);
  Nanos t = kSecond;
  write(quick, t);
  answer(t += 100 * kMicrosecond);
  SUBCASE("all quick") {
    write(quick, t);
    CHECK(asked(quick, t + 1 * kMillisecond) == 0);
    CHECK(asked(quick, t + 3 * kMillisecond) == 1);
  }
  SUBCASE("one slow") {
    write(slow, t);
    answer(t += 10 * kMillisecond);
    write(quick, t);
    CHECK(asked(quick, t + 15 * kMillisecond) == 0);
    CHECK(asked(quick, t + 25 * kMillisecond) == 1);
  }
}

}  // namespace
}  // namespace paralet
