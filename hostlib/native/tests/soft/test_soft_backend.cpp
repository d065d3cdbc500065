// SPDX-License-Identifier: Apache-2.0
// Two soft back ends over loopback sockets, driven by the test's thread.
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/socket_address.hpp"
#include "bytes.hpp"
#include "free_ports.hpp"
#include "soft_scene.hpp"

namespace paralet {
namespace {

using test::Bytes;
using test::kOurAddress;
using test::kPathMtu;
using test::kTheirAddress;
using test::soft_options;

struct Two {
  explicit Two(const SoftOptions& of_a = soft_options(kOurAddress), std::uint32_t path_mtu = kPathMtu)
      : a(of_a), mtu(path_mtu) {}
  SoftBackend a;
  SoftBackend b{soft_options(kTheirAddress)};
  std::uint32_t mtu;
  std::vector<Completion> at_a;
  std::vector<Completion> at_b;

  struct Pair {
    std::uint32_t at_a;
    std::uint32_t at_b;
  };
  Pair connect() {
    const std::uint16_t port = test::free_port();
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
    REQUIRE(a.connect_qp(one.qpn, remote(kTheirAddress, b, other), port));
    REQUIRE(b.connect_qp(other.qpn, remote(kOurAddress, a, one), port));
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

TEST_CASE("destroying a QP in the middle of a SEND returns its receive buffer") {
  Two two;
  Bytes memory(480);
  two.b.post_receive({.data = memory.data(), .length = 480, .cookie = 7});
  const Two::Pair broken = two.connect();
  const Bytes half = test::random_fill(1, 400);
  two.send(broken.at_a, half);
  REQUIRE(two.eventually([&] { return two.b.statistics(broken.at_b).counters.rx_packets == 1; }, false));
  CHECK(two.at_b.empty());
  two.b.destroy_qp(broken.at_b);

  const Two::Pair whole = two.connect();
  const Bytes message = test::random_fill(2, 400);
  two.send(whole.at_a, message);
  REQUIRE(two.eventually([&] { return !two.at_b.empty(); }, true));
  CHECK(two.at_b[0].kind == Completion::Kind::kReceivedSend);
  CHECK(two.at_b[0].cookie == 7);
  CHECK(Bytes(memory.begin(), memory.begin() + 400) == message);
}

TEST_CASE("packets have the traffic class of the options as their TOS byte, with ECT(0) to peers that count marks") {
  struct Case {
    std::uint8_t traffic_class;
    std::uint32_t agreed;
    std::uint8_t sent;
  };
  // Given ECN bits are sent as they are.
  for (const Case& test :
       {Case{0x00, 0, 0x00}, Case{0x68, 0, 0x68}, Case{0x00, kSelectiveRepeat, 0x00}, Case{0x00, kMarkCounts, 0x02},
        Case{0x68, kMarkCounts, 0x6A}, Case{0x69, kMarkCounts, 0x69}, Case{0x6A, 0, 0x6A}}) {
    CAPTURE(test.traffic_class);
    CAPTURE(test.agreed);
    SoftOptions marked = soft_options(kOurAddress);
    marked.traffic_class = test.traffic_class;
    SoftBackend a(marked);
    const FileDescriptor peer(::socket(AF_INET, SOCK_DGRAM, 0));
    const int on = 1;
    REQUIRE(setsockopt(peer.get(), IPPROTO_IP, IP_RECVTOS, &on, sizeof on) == 0);
    SocketAddress address(kTheirAddress, 0);
    REQUIRE(::bind(peer.get(), address.get(), address.length()) == 0);
    REQUIRE(::getsockname(peer.get(), address.get(), address.length_place()) == 0);
    const QpIdentity qp = a.create_qp();
    const RemoteQp remote{.address = kTheirAddress,
                          .udp_port = address.port(),
                          .qpn = 5,
                          .path_mtu = kPathMtu,
                          .ece = soft_ece(test.agreed)};
    REQUIRE(a.connect_qp(qp.qpn, remote, test::free_port()));
    const Bytes data(100);
    a.post(qp.qpn, {.kind = WorkKind::kSend, .data = data.data(), .length = 100});
    a.flush(now());
    pollfd arrived{.fd = peer.get(), .events = POLLIN, .revents = 0};
    REQUIRE(::poll(&arrived, 1, 20'000) == 1);
    alignas(cmsghdr) std::array<char, 64> control{};
    Bytes packet(2048);
    iovec piece{.iov_base = packet.data(), .iov_len = packet.size()};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    REQUIRE(::recvmsg(peer.get(), &message, 0) > 0);
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    REQUIRE(header != nullptr);
    CHECK(static_cast<std::uint8_t>(*CMSG_DATA(header)) == test.sent);
  }
}

TEST_CASE("a whole message of 256 KiB is sent before the next QP sends") {
  constexpr std::uint32_t kBytes = 256 * 1024;
  SoftOptions of_a = soft_options(kOurAddress);
  of_a.congestion.initial_window = 64;
  Two two(of_a, 4096);
  Bytes memory(2 * std::size_t{kBytes});
  const std::uint32_t rkey = two.b.register_memory(memory.data(), memory.size());
  const Bytes message = test::random_fill(3, kBytes);
  const std::array<Two::Pair, 2> pairs{two.connect(), two.connect()};
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    two.a.post(pairs[i].at_a,
               {.data = message.data(), .length = kBytes, .remote_address = i * std::uint64_t{kBytes}, .rkey = rkey});
  }
  two.a.flush(now());
  two.b.progress(now(), two.at_b);  // the first arrivals
  CHECK(two.b.statistics(pairs[0].at_b).counters.rx_packets == 64);
  CHECK(Bytes(memory.begin(), memory.begin() + kBytes) == message);
}

TEST_CASE("a QP probes no earlier than twice the recent round trip on other QPs to the same peer") {
  SoftOptions of_a = soft_options(kOurAddress);
  of_a.min_timeout = 200 * kMillisecond;
  Two two(of_a);
  const Bytes data = test::random_fill(4, 100);
  const auto write = [&](const Two::Pair& pair, Nanos at) {
    two.a.post(pair.at_a, {.data = data.data(), .rkey = 0});  // an empty WRITE needs no memory
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
  const Two::Pair quick = two.connect();
  const Two::Pair slow = two.connect();
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

TEST_CASE("long messages on several QPs, for every path MTU") {
  constexpr std::uint32_t kBytes = 1'000'001;
  for (const std::uint32_t mtu : {256U, 512U, 1024U, 2048U, 4096U}) {
    CAPTURE(mtu);
    SoftOptions of_a = soft_options(kOurAddress);
    of_a.congestion.initial_window = 128;
    Two two(of_a, mtu);
    const std::array<Bytes, 3> messages{test::random_fill(7, kBytes), test::random_fill(8, kBytes),
                                        test::random_fill(9, kBytes)};
    std::array<Bytes, 3> received;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      received[i].resize(kBytes);
      const std::uint32_t rkey = two.b.register_memory(received[i].data(), kBytes);
      const Two::Pair pair = two.connect();
      two.a.post(pair.at_a, {.data = messages[i].data(), .length = kBytes, .rkey = rkey});
    }
    two.a.flush(now());
    REQUIRE(two.eventually([&] { return two.at_a.size() == messages.size(); }, true));
    for (const Completion& done : two.at_a) CHECK(done.status == Status::kSuccess);
    CHECK(received == messages);
    CHECK(two.b.discards().icrc == 0);
    CHECK(two.b.discards().malformed == 0);
    CHECK(two.b.discards().unknown_qp == 0);
  }
}

}  // namespace
}  // namespace paralet
