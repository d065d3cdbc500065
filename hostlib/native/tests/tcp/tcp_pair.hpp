// SPDX-License-Identifier: Apache-2.0
// Two back ends over TCP in one process, and a pair of QPs between them. Time is an argument, so that time limits pass
// at once.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/random.hpp"
#include "bytes.hpp"
#include "tcp/tcp_backend.hpp"

namespace paralet::tcp {

using test::Bytes;
using test::random_fill;

inline constexpr std::uint32_t kA = 0x7F000001;
inline constexpr std::uint32_t kB = 0x7F000002;
inline constexpr auto kTimeLimit = std::chrono::seconds(20);

inline TcpOptions tcp_options(const IpAddress& address, const Faults& faults = {},
                              Nanos min_timeout = 5 * kMillisecond) {
  TcpOptions out;
  out.min_timeout = min_timeout;
  out.sockets.address = address;
  out.faults = faults;
  return out;
}

/// A back end, its receive buffers and what it has completed.
struct TcpSide {
  TcpSide(const IpAddress& own, const Faults& faults, std::size_t buffers, Nanos min_timeout)
      : address(own), backend(tcp_options(own, faults, min_timeout)), region(200'000), places(buffers) {
    for (std::size_t i = 0; i < buffers; ++i) give(i);
    rkey = backend.register_memory(region.data(), region.size());
  }
  void give(std::size_t i) {
    backend.post_receive(
        {.data = places[i].data(), .length = static_cast<std::uint32_t>(places[i].size()), .cookie = i});
  }
  void step() {
    std::vector<Completion> fresh;
    backend.progress(now() + skipped, fresh);
    backend.flush(now() + skipped);
    for (const Completion& completion : fresh) {
      const bool received =
          completion.kind == Completion::Kind::kReceivedSend || completion.kind == Completion::Kind::kReceivedWriteImm;
      if (completion.kind == Completion::Kind::kReceivedSend) {
        const auto& place = places[completion.cookie];
        messages.emplace_back(place.begin(), place.begin() + completion.byte_length);
      }
      if (received && gives_back) give(completion.cookie);
      completions.push_back(completion);
    }
  }
  [[nodiscard]] std::size_t count(Completion::Kind kind) const {
    return static_cast<std::size_t>(std::ranges::count(completions, kind, &Completion::kind));
  }
  [[nodiscard]] RemoteQp remote(const QpIdentity& qp) const {
    return {.address = address,
            .udp_port = backend.udp_port(),
            .qpn = qp.qpn,
            .first_psn = qp.first_psn,
            .path_mtu = 1024,
            .ece = {.vendor_id = kTcpVendor, .options = answers_pings ? kAnswersPings : 0, .comp_mask = 0}};
  }

  IpAddress address;
  TcpBackend backend;
  Bytes region;
  std::uint32_t rkey = 0;
  std::vector<std::array<std::byte, 512>> places;
  bool gives_back = true;
  bool answers_pings = true;  ///< as its peer is told
  Nanos skipped = 0;          ///< by which its clock is ahead
  std::vector<Completion> completions;
  std::vector<Bytes> messages;
};

/// Two QPs that are connected to each other.
struct TcpPair {
  explicit TcpPair(const Faults& faults = {}, std::size_t buffers = 64, Nanos min_timeout = 5 * kMillisecond)
      : a(kA, faults, 64, min_timeout), b(kB, faults, buffers, min_timeout) {
    qa = a.backend.create_qp();
    qb = b.backend.create_qp();
  }
  void connect() {
    connect_a();
    connect_b();
    REQUIRE(
        eventually([&] { return a.backend.estimate(qa.qpn).app_limited && b.backend.estimate(qb.qpn).app_limited; }));
  }
  bool connect_a(std::uint16_t port = 0) { return connect(a, qa, b.remote(qb), port); }
  bool connect_b() { return connect(b, qb, a.remote(qa), 0); }
  static bool connect(TcpSide& side, const QpIdentity& qp, const RemoteQp& remote, std::uint16_t port) {
    if (port != 0) return side.backend.connect_qp(qp.qpn, remote, port);
    for (int tries = 0; tries < 100; ++tries) {
      const auto any = static_cast<std::uint16_t>(0xC000 + random_u32() % 0x4000);
      if (side.backend.connect_qp(qp.qpn, remote, any)) return true;
    }
    return false;
  }
  template <typename Condition>
  bool eventually(Condition condition) {
    const auto until = std::chrono::steady_clock::now() + kTimeLimit;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > until) return false;
      a.step();
      b.step();
    }
    return true;
  }
  /// Long enough for what the other end does at once, and several steps of both.
  void settle() {
    for (int i = 0; i < 20; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      a.step();
      b.step();
    }
  }
  /// The same while B's process does nothing; its kernel acknowledges.
  template <typename Condition>
  bool a_alone_until(Condition condition) {
    const auto until = std::chrono::steady_clock::now() + kTimeLimit;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > until) return false;
      a.step();
    }
    return true;
  }
  /// Bytes of A that B's kernel has acknowledged, in packets of the path MTU.
  [[nodiscard]] std::uint64_t acknowledged() const { return a.backend.statistics(qa.qpn).acknowledged_packets; }
  void ping() { a.backend.post(qa.qpn, {.kind = WorkKind::kWrite, .cookie = 2}); }
  [[nodiscard]] bool a_was_told(Status status) const {
    return std::ranges::count(a.completions, status, &Completion::status) > 0;
  }
  [[nodiscard]] bool a_gave_up() const { return a_was_told(Status::kRetryExceeded); }
  /// A leaves its connection while B's process does nothing.
  void a_changes_its_port() {
    while (a.backend.set_port(qa.qpn, static_cast<std::uint16_t>(0xC000 + random_u32() % 0x4000)) !=
           PortChange::kStarted) {
    }
    REQUIRE(a_alone_until([&] { return a.count(Completion::Kind::kPortChanged) == 1; }));
  }
  void send(const Bytes& data) {
    a.backend.post(
        qa.qpn,
        {.kind = WorkKind::kSend, .cookie = 1, .data = data.data(), .length = static_cast<std::uint32_t>(data.size())});
  }
  void check() {
    const Bytes data = random_fill(5, 100);
    const std::size_t before = b.messages.size();
    send(data);
    REQUIRE(eventually([&] { return b.messages.size() > before; }));
    CHECK(b.messages.back() == data);
  }

  TcpSide a;
  TcpSide b;
  QpIdentity qa;
  QpIdentity qb;
};

}  // namespace paralet::tcp
