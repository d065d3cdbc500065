// SPDX-License-Identifier: Apache-2.0
// Two back ends over real connections, and strangers at their ports. Time is an argument, so that time limits pass at
// once.
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/errors.hpp"
#include "base/socket_address.hpp"
#include "bytes.hpp"
#include "tcp/frames.hpp"
#include "tcp/tcp_pair.hpp"

namespace paralet::tcp {
namespace {

using test::Bytes;
using test::random_fill;

/// A connection of a stranger to the port of a back end.
FileDescriptor stranger_at(const TcpSide& side, const IpAddress& from) {
  FileDescriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress own(from, 0);
  const SocketAddress to(side.address, side.backend.udp_port());
  REQUIRE(::bind(fd.get(), own.get(), own.length()) == 0);
  REQUIRE(::connect(fd.get(), to.get(), to.length()) == 0);
  return fd;
}

void say(const FileDescriptor& fd, std::span<const std::byte> bytes) {
  [[maybe_unused]] const ssize_t sent = ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

bool closed(const FileDescriptor& fd) {
  std::array<char, 256> bytes{};
  const ssize_t got = ::recv(fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno == ECONNRESET);
}

TEST_CASE("messages and payloads pass both ways, and sends complete when they are acknowledged") {
  TcpPair pair;
  pair.connect();
  const Bytes payload = random_fill(1, 150'000);
  pair.a.backend.post(pair.qa.qpn, {.kind = WorkKind::kWriteImm,
                                    .cookie = 11,
                                    .data = payload.data(),
                                    .length = 150'000,
                                    .remote_address = 50'000,
                                    .rkey = pair.b.rkey,
                                    .imm = 77});
  REQUIRE(pair.eventually([&] { return pair.b.count(Completion::Kind::kReceivedWriteImm) == 1; }));
  CHECK(std::equal(payload.begin(), payload.end(), pair.b.region.begin() + 50'000));
  CHECK(pair.b.completions.back().imm == 77);
  CHECK(pair.b.completions.back().qpn == pair.qb.qpn);
  REQUIRE(pair.eventually([&] { return pair.a.count(Completion::Kind::kSent) == 1; }));
  const Completion sent = pair.a.completions.back();
  CHECK(sent.cookie == 11);
  CHECK(sent.status == Status::kSuccess);
  const Bytes answer = random_fill(2, 40);
  pair.b.backend.post(pair.qb.qpn, {.kind = WorkKind::kSend, .data = answer.data(), .length = 40});
  REQUIRE(pair.eventually([&] { return pair.a.messages.size() == 1; }));
  CHECK(pair.a.messages.front() == answer);
  const QpStatistics statistics = pair.a.backend.statistics(pair.qa.qpn);
  CHECK(statistics.counters.tx_packets > 0);
  CHECK(statistics.smoothed_rtt > 0);
  CHECK(pair.b.backend.statistics(pair.qb.qpn).counters.rx_bytes == 150'000);
}

TEST_CASE("when connections are cut in the middle of messages, each arrives once and in order") {
  for (const std::uint64_t seed : {1, 2, 3}) {
    CAPTURE(seed);
    TcpPair pair({.cut = 0.5, .seed = seed});
    pair.connect();
    std::vector<Bytes> sent;
    std::vector<Bytes> payloads;
    for (std::uint64_t i = 0; i < 200; ++i) {
      sent.push_back(random_fill(i, i % 300));
      payloads.push_back(random_fill(1000 + i, i % 7 == 0 ? 150'000 : 100));
    }
    for (std::size_t i = 0; i < sent.size(); ++i) {
      pair.a.backend.post(pair.qa.qpn, {.kind = WorkKind::kWrite,
                                        .data = payloads[i].data(),
                                        .length = static_cast<std::uint32_t>(payloads[i].size()),
                                        .remote_address = i,
                                        .rkey = pair.b.rkey});
      pair.send(sent[i]);
      pair.a.step();
    }
    REQUIRE(pair.eventually([&] { return pair.a.count(Completion::Kind::kSent) == 400; }));
    REQUIRE(pair.eventually([&] { return pair.b.messages.size() >= sent.size(); }));
    CHECK(pair.b.messages == sent);
    CHECK(std::equal(payloads.back().begin(), payloads.back().end(), pair.b.region.begin() + 199));
    CHECK(std::ranges::all_of(pair.a.completions, [](const Completion& c) { return c.status == Status::kSuccess; }));
    CHECK(pair.a.backend.discards().injected > 10);
  }
}

TEST_CASE("a lane changes its port while it sends, and nothing is lost") {
  TcpPair pair;
  pair.connect();
  std::set<std::uint16_t> ports{pair.a.backend.statistics(pair.qa.qpn).port};
  std::vector<Bytes> sent;
  for (std::uint64_t i = 0; i < 400; ++i) sent.push_back(random_fill(i, 300));
  for (std::size_t i = 0; i < sent.size(); ++i) {
    pair.send(sent[i]);
    if (i % 100 != 50) continue;
    REQUIRE(pair.eventually([&] { return pair.a.backend.estimate(pair.qa.qpn).app_limited; }));
    const std::size_t before = pair.a.count(Completion::Kind::kPortChanged);
    PortChange change = PortChange::kRefused;
    std::uint16_t port = 0;
    while (change == PortChange::kRefused) {
      port = static_cast<std::uint16_t>(0xC000 + random_u32() % 0x4000);
      change = pair.a.backend.set_port(pair.qa.qpn, port);
    }
    REQUIRE(change == PortChange::kStarted);
    REQUIRE(pair.eventually([&] { return pair.a.count(Completion::Kind::kPortChanged) > before; }));
    CHECK(pair.a.backend.statistics(pair.qa.qpn).port == port);
    ports.insert(port);
  }
  REQUIRE(pair.eventually([&] { return pair.b.messages.size() >= sent.size(); }));
  CHECK(pair.b.messages == sent);
  CHECK(ports.size() >= 4);
}

TEST_CASE("no two lanes to one peer have one source port, and a port is free again at once") {
  TcpPair pair;
  pair.connect();
  const std::uint16_t port = pair.a.backend.statistics(pair.qa.qpn).port;
  const QpIdentity other = pair.a.backend.create_qp();
  const QpIdentity there = pair.b.backend.create_qp();
  CHECK_FALSE(pair.a.backend.connect_qp(other.qpn, pair.b.remote(there), port));
  pair.a.backend.destroy_qp(pair.qa.qpn);
  CHECK(pair.a.backend.connect_qp(other.qpn, pair.b.remote(there), port));
}

TEST_CASE("the first back end at an address listens on port 4791, the next ones elsewhere") {
  // An address of this process alone: tests run beside each other.
  const IpAddress own(0x7F400000 + static_cast<std::uint32_t>(::getpid() & 0x3FFFFF));
  std::optional<TcpBackend> first(tcp_options(own));
  CHECK(first->udp_port() == 4791);
  const TcpBackend second(tcp_options(own));
  CHECK(second.udp_port() != 4791);
  first.reset();
  CHECK(TcpBackend(tcp_options(own)).udp_port() == 4791);
}

TEST_CASE("without receive buffers messages wait, and come when there are some") {
  TcpPair pair({}, 2);
  pair.b.gives_back = false;
  pair.connect();
  const Bytes data = random_fill(1, 100);
  for (int i = 0; i < 6; ++i) pair.send(data);
  REQUIRE(pair.eventually([&] { return pair.b.messages.size() == 2; }));
  pair.settle();
  CHECK(pair.b.messages.size() == 2);
  std::vector<Completion> none;
  CHECK(pair.b.backend.take_arrived(now(), none));  // some of what has arrived waits for buffers
  pair.b.gives_back = true;
  pair.b.give(0);
  REQUIRE(pair.eventually([&] { return pair.b.messages.size() == 6; }));
}

TEST_CASE("a QP that is stopped takes what has arrived, and its peer takes the rest back") {
  TcpPair pair;
  pair.connect();
  pair.check();
  std::vector<Bytes> sent;
  for (std::uint64_t i = 0; i < 20; ++i) sent.push_back(random_fill(i, 100));
  for (const Bytes& bytes : sent) pair.send(bytes);
  pair.a.step();  // they leave, and wait in B's socket
  pair.b.backend.stop_qp(pair.qb.qpn);
  REQUIRE(pair.eventually([&] { return pair.b.count(Completion::Kind::kStopped) == 1; }));
  for (const Bytes& bytes : sent) pair.send(bytes);
  pair.settle();
  CHECK(pair.b.count(Completion::Kind::kReceivedSend) == pair.b.messages.size());
  const auto stopped = std::ranges::find(pair.b.completions, Completion::Kind::kStopped, &Completion::kind);
  CHECK(stopped->imm == pair.b.messages.size());
  pair.a.backend.stop_qp(pair.qa.qpn);
  const auto back = pair.a.backend.take_back(pair.qa.qpn, stopped->imm);
  REQUIRE(pair.eventually([&] { return pair.a.count(Completion::Kind::kStopped) == 1; }));
  const std::size_t done = pair.a.count(Completion::Kind::kSent);
  CHECK(done == stopped->imm);
  CHECK(done + back.size() == 41);
}

TEST_CASE("a wrong key ends the sending QP with the reason, and the receiving one accepts nothing more") {
  TcpPair pair;
  pair.connect();
  const Bytes data(10);
  pair.a.backend.post(pair.qa.qpn,
                      {.kind = WorkKind::kWriteImm, .cookie = 3, .data = data.data(), .length = 10, .rkey = 12345});
  pair.send(data);
  REQUIRE(pair.eventually([&] { return pair.a.count(Completion::Kind::kSent) == 2; }));
  // B's kernel may have acknowledged both before the first was read, so the refusal may come later than they end.
  CHECK(pair.eventually([&] {
    return std::ranges::any_of(pair.a.completions,
                               [](const Completion& c) { return c.status == Status::kRemoteAccess; });
  }));
  pair.settle();
  CHECK(pair.b.messages.empty());
}

TEST_CASE("a QP learns why it is refused when it changes its port before the refusal has come") {
  TcpPair pair;
  pair.connect();
  const Bytes data(10);
  pair.a.backend.post(pair.qa.qpn,
                      {.kind = WorkKind::kWriteImm, .cookie = 3, .data = data.data(), .length = 10, .rkey = 12345});
  REQUIRE(pair.a_alone_until([&] { return pair.a.count(Completion::Kind::kSent) == 1; }));
  pair.a_changes_its_port();
  CHECK(pair.eventually([&] { return pair.a_was_told(Status::kRemoteAccess); }));
}

TEST_CASE("a QP learns why it is refused when its next connection waits for the one before") {
  TcpPair pair({}, 1);
  pair.b.gives_back = false;
  pair.connect();
  const Bytes data(10);
  for (int i = 0; i < 2; ++i) pair.send(data);
  pair.a.backend.post(pair.qa.qpn,
                      {.kind = WorkKind::kWriteImm, .cookie = 3, .data = data.data(), .length = 10, .rkey = 12345});
  REQUIRE(pair.a_alone_until([&] { return pair.a.count(Completion::Kind::kSent) == 3; }));
  pair.a_changes_its_port();
  pair.settle();  // B has the hello, and no buffer for the second message
  CHECK(pair.b.messages.size() == 1);
  pair.b.give(0);
  CHECK(pair.eventually([&] { return pair.a_was_told(Status::kRemoteAccess); }));
}

TEST_CASE("a peer that acknowledges nothing is given up after the retry time") {
  TcpPair pair({.dead = 1, .dead_after = 1});
  pair.connect();
  pair.check();
  pair.settle();
  const Bytes data(100);
  pair.send(data);
  pair.settle();
  REQUIRE(pair.a_alone_until([&] { return pair.a.backend.statistics(pair.qa.qpn).counters.timeouts > 0; }));
  pair.a.skipped = 11 * kSecond;
  REQUIRE(pair.eventually([&] { return pair.a_gave_up(); }));
}

TEST_CASE("a ping is done when the peer has answered it, and so is what follows it") {
  TcpPair pair;
  pair.connect();
  CHECK(pair.a.backend.ece(pair.qa.qpn).options == kAnswersPings);
  const Bytes data = random_fill(4, 100);
  pair.ping();
  for (int i = 0; i < 20; ++i) pair.send(data);
  REQUIRE(pair.a_alone_until([&] { return pair.acknowledged() > 0; }));
  CHECK(pair.a.completions.empty());
  REQUIRE(pair.eventually([&] { return pair.a.count(Completion::Kind::kSent) == 21; }));
  CHECK(pair.a.completions.front().cookie == 2);
  CHECK(pair.b.messages.size() == 20);
}

TEST_CASE("a peer that does not answer a ping is given up after the retry time, though its kernel acknowledges") {
  TcpPair pair;
  pair.connect();
  pair.check();
  pair.ping();
  const std::uint64_t before = pair.acknowledged();
  pair.a.skipped = 6 * kSecond;
  const Bytes data = random_fill(1, 100);
  for (int i = 0; i < 40; ++i) pair.send(data);  // acknowledged too: B is not alive for that
  REQUIRE(pair.a_alone_until([&] { return pair.acknowledged() > before; }));
  CHECK_FALSE(pair.a_gave_up());
  pair.a.skipped = 11 * kSecond;
  REQUIRE(pair.a_alone_until([&] { return pair.a_gave_up(); }));
  CHECK(pair.a.count(Completion::Kind::kSent) == 42);  // the first one, the ping, and what came behind it
}

TEST_CASE("pings arrive though connections are cut") {
  TcpPair pair({.cut = 0.5, .seed = 4});
  pair.connect();
  for (std::size_t i = 1; i <= 100; ++i) {
    pair.ping();
    REQUIRE(pair.eventually([&] { return pair.a.count(Completion::Kind::kSent) == i; }));
  }
  CHECK_FALSE(pair.a_gave_up());
}

TEST_CASE("a ping to a peer that does not answer pings is done when it is acknowledged") {
  TcpPair pair;
  pair.a.answers_pings = pair.b.answers_pings = false;
  pair.connect();
  CHECK(pair.a.backend.ece(pair.qa.qpn).options == 0);
  pair.ping();
  CHECK(pair.a_alone_until([&] { return pair.a.count(Completion::Kind::kSent) == 1; }));
  pair.check();
}

TEST_CASE("a QP that has been idle for long counts no timeout when it sends again") {
  TcpPair pair({}, 64, 500 * kMillisecond);
  pair.connect();
  pair.check();
  std::this_thread::sleep_for(std::chrono::milliseconds(600));  // nobody calls progress, as while a device sleeps
  pair.check();
  CHECK(pair.a.backend.statistics(pair.qa.qpn).counters.timeouts == 0);
}

// -- strangers ------------------------------------------------------------------------------------------------------

TEST_CASE("a hello that is no hello, names no QP, or does not know the tokens is refused") {
  TcpPair pair;
  pair.connect();
  const tcp::Hello good{.to_qpn = pair.qb.qpn,
                        .to_token = pair.qb.first_psn,
                        .from_qpn = pair.qa.qpn,
                        .from_token = pair.qa.first_psn,
                        .attempt = 9};
  const auto refused = [&](const tcp::Hello& hello, const IpAddress& from) {
    const FileDescriptor fd = stranger_at(pair.b, from);
    say(fd, tcp::encode(hello));
    return pair.eventually([&] { return closed(fd); });
  };
  tcp::Hello hello = good;
  hello.to_qpn ^= 1;
  CHECK(refused(hello, kA));
  hello = good;
  hello.to_token ^= 1;
  CHECK(refused(hello, kA));
  CHECK(pair.b.backend.discards().unknown_qp == 2);
  hello = good;
  hello.from_qpn ^= 1;
  CHECK(refused(hello, kA));
  hello = good;
  hello.from_token ^= 1;
  CHECK(refused(hello, kA));
  CHECK(refused(good, 0x7F000003));  // from another address
  CHECK(pair.b.backend.discards().wrong_source == 3);
  hello = good;
  hello.attempt = 1;  // that of the connection that the QP has
  CHECK(refused(hello, kA));
  hello.attempt = 0;
  CHECK(refused(hello, kA));
  const FileDescriptor babbler = stranger_at(pair.b, kA);
  say(babbler, Bytes(70'000, std::byte{'x'}));
  CHECK(pair.eventually([&] { return closed(babbler); }));
  CHECK(pair.b.backend.discards().malformed == 3);
  pair.check();
}

TEST_CASE("a hello before the QP is connected is kept, and refused when it turns out to be a stranger's") {
  TcpPair pair;
  const FileDescriptor stranger = stranger_at(pair.b, kA);
  say(stranger, tcp::encode(tcp::Hello{.to_qpn = pair.qb.qpn, .to_token = pair.qb.first_psn, .attempt = 1}));
  pair.settle();
  CHECK_FALSE(closed(stranger));
  REQUIRE(pair.connect_b());
  CHECK(pair.eventually([&] { return closed(stranger); }));
  REQUIRE(pair.connect_a());
  pair.check();
}

TEST_CASE("the peer may connect first") {
  TcpPair pair;
  REQUIRE(pair.connect_a());
  pair.settle();
  REQUIRE(pair.connect_b());
  pair.check();
}

TEST_CASE("silent connections are closed after a time, and do not keep others out") {
  TcpPair pair;
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 50; ++i) {
    silent.push_back(stranger_at(pair.b, kA));
    say(silent.back(), Bytes(tcp::kHelloBytes - 1));  // a part extends nothing
  }
  pair.settle();
  pair.connect();
  pair.check();
  CHECK_FALSE(closed(silent.front()));
  pair.b.skipped = 6 * kSecond;
  for (const FileDescriptor& socket : silent) CHECK(pair.eventually([&] { return closed(socket); }));
}

TEST_CASE("a congestion control that the kernel does not have is named") {
  TcpOptions wrong = tcp_options(kA);
  wrong.sockets.congestion = "nonesuch";
  std::string said;
  try {
    const TcpBackend backend(wrong);
  } catch (const DeviceError& error) {
    said = error.what();
  }
  CHECK(said.starts_with("this kernel has no TCP congestion control 'nonesuch', or does not allow it; it has: "));
  CHECK(said.find("reno") != std::string::npos);
}

}  // namespace
}  // namespace paralet::tcp
