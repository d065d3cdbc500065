// SPDX-License-Identifier: Apache-2.0
// The soft back end by itself, over loopback sockets, driven by the test's thread.
#include <doctest/doctest.h>

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
  SoftBackend a{options(kA)};
  SoftBackend b{options(kB)};
  std::vector<Completion> at_a;
  std::vector<Completion> at_b;

  struct Pair {
    std::uint32_t at_a;
    std::uint32_t at_b;
  };
  Pair connect(std::uint16_t port) {
    const QpIdentity one = a.create_qp();
    const QpIdentity other = b.create_qp();
    const auto remote = [](std::uint32_t address, const SoftBackend& there, const QpIdentity& qp) {
      return RemoteQp{.address = address,
                      .udp_port = there.udp_port(),
                      .qpn = qp.qpn,
                      .first_psn = qp.first_psn,
                      .path_mtu = kPathMtu,
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

}  // namespace
}  // namespace paralet
