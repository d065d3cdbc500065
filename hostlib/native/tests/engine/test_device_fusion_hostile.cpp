// SPDX-License-Identifier: Apache-2.0
// What a hostile peer may send to a device of several NICs.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "engine/channel.hpp"
#include "engine/fused_fixture.hpp"

namespace paralet {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture

/// A TCP connection from an address to a listener's member.
std::unique_ptr<Channel> dial(const IpAddress& from, const IpAddress& to, std::uint16_t port) {
  auto channel = std::make_unique<Channel>(from, to, port, kSecond);
  REQUIRE(eventually([&] {
    channel->on_writable();
    return !channel->connecting() || channel->closed();
  }));
  REQUIRE_FALSE(channel->closed());
  return channel;
}

/// Frames until the channel ends or `wanted` came.
std::vector<handshake::Frame> answers(Channel& channel, std::size_t wanted) {
  std::vector<handshake::Frame> out;
  static_cast<void>(eventually([&] {
    for (auto& frame : channel.on_readable()) out.push_back(std::move(frame));
    return channel.closed() || out.size() >= wanted;
  }));
  return out;
}

/// A peer that speaks the protocol from 127.0.9.1 and 127.0.9.2 to a fused device, without QPs of its own.
struct Stranger {
  static constexpr std::uint32_t kFrom = 0x7F000901;
  explicit Stranger(const DeviceOptions& options = fused_options(1, 2))
      : victim(options, fused_backend(1, 2, deaths, &broken)), listener(victim.listen()) {
    handle = *handshake::decode_handle(listener->handle);
  }
  [[nodiscard]] handshake::Hello hello() const {
    handshake::Hello out{.listener = handle.listener, .token = handle.token, .endpoint = {}};
    out.endpoint.address = kFrom;
    out.endpoint.udp_port = 4791;
    out.endpoint.path_mtu = 1024;
    out.endpoint.qps = {{.qpn = 17, .first_psn = 0}, {.qpn = (1U << 24) | 18, .first_psn = 0}};
    out.endpoint.join = {std::byte{1}, std::byte{2}};
    out.endpoint.further = {{.address = kFrom + 1, .udp_port = 4791, .max_ip_id = kDefaultMaxIpId, .ece = {}}};
    return out;
  }
  /// A channel of a member, from its address.
  [[nodiscard]] std::unique_ptr<Channel> open_channel(unsigned member) const {
    return member == 0 ? dial(kFrom, handle.address, handle.tcp_port)
                       : dial(kFrom + 1, handle.further.front().address, handle.further.front().tcp_port);
  }
  [[nodiscard]] std::unique_ptr<Channel> greet(const handshake::Hello& with, unsigned member = 0) const {
    auto channel = open_channel(member);
    channel->send(with);
    return channel;
  }
  [[nodiscard]] std::unique_ptr<Channel> join(std::uint8_t member) const {
    auto channel = open_channel(member);
    channel->send(handshake::Join{.token = hello().endpoint.join, .member = member});
    return channel;
  }
  /// Whether the victim refuses this hello.
  [[nodiscard]] bool refused(const handshake::Hello& with, unsigned member = 0) const {
    const auto channel = greet(with, member);
    const auto got = answers(*channel, 1);
    return got.empty() || std::holds_alternative<handshake::Refuse>(got.front());
  }
  Deaths deaths{};
  std::atomic<std::uint32_t> broken{0};
  Device victim;
  std::shared_ptr<Listener> listener;
  handshake::Handle handle;
};

TEST_CASE("a hello whose members do not fit is refused") {
  Stranger stranger;
  CHECK_FALSE(stranger.refused(stranger.hello()));
  auto wrong = stranger.hello();
  wrong.endpoint.further.push_back(wrong.endpoint.further.front());
  CHECK(stranger.refused(wrong));
  wrong = stranger.hello();
  std::swap(wrong.endpoint.qps[0], wrong.endpoint.qps[1]);
  CHECK(stranger.refused(wrong));
  wrong = stranger.hello();
  wrong.endpoint.further.front().address = *parse_address("::1");
  CHECK(stranger.refused(wrong));
  wrong = stranger.hello();
  wrong.endpoint.qps.pop_back();  // no lane for member 1
  CHECK(stranger.refused(wrong));
  wrong = stranger.hello();
  wrong.endpoint.further.clear();  // QPs on members that there are not
  CHECK(stranger.refused(wrong));
  wrong = stranger.hello();
  for (auto& qp : wrong.endpoint.qps) qp.qpn |= 1U << 24;
  CHECK(stranger.refused(wrong));  // all lanes on member 1, over the channel of member 0
  CHECK_FALSE(stranger.refused(wrong, 1));
  wrong.endpoint.further.front().address = Stranger::kFrom + 2;  // not where it comes from
  CHECK(stranger.refused(wrong, 1));
}

TEST_CASE("a peer that a hello from a further member made is used for its handle once member 0 has joined") {
  Stranger stranger;
  auto hello = stranger.hello();
  for (auto& qp : hello.endpoint.qps) qp.qpn |= 1U << 24;
  hello.endpoint.device = {std::byte{7}};
  const auto channel = stranger.greet(hello, 1);
  REQUIRE(std::holds_alternative<handshake::Welcome>(answers(*channel, 1).at(0)));
  handshake::Handle claimed = stranger.handle;
  claimed.address = Stranger::kFrom;
  claimed.tcp_port = claimed.further.front().tcp_port = 1;
  claimed.further.front().address = Stranger::kFrom + 1;
  claimed.device = hello.endpoint.device;
  /// Whether a connection to that handle uses the peer, and does not fail otherwise.
  const auto uses_peer = [&] {
    const auto connection = stranger.victim.connect(handshake::encode(claimed), hello.endpoint.qps.size());
    bool asked = false;
    REQUIRE(eventually([&] {
      asked = asked || std::ranges::any_of(channel->on_readable(), [](const handshake::Frame& frame) {
                const auto* numbered = std::get_if<handshake::Numbered>(&frame);
                const auto inner = numbered != nullptr ? handshake::decode(numbered->body) : std::nullopt;
                return inner && std::holds_alternative<handshake::Connect>(*inner);
              });
      return asked || connection->state == Connection::State::kClosed;
    }));
    return asked;
  };
  CHECK_FALSE(uses_peer());
  const auto home = stranger.join(0);
  CHECK(eventually(uses_peer));
}

TEST_CASE("only the peer joins, from the address of the member") {
  Stranger stranger;
  const auto main = stranger.greet(stranger.hello());
  const auto welcome = answers(*main, 1);
  REQUIRE(welcome.size() == 1);
  REQUIRE(std::holds_alternative<handshake::Welcome>(welcome.front()));
  const handshake::Token token = stranger.hello().endpoint.join;
  const auto ends = [&](std::uint32_t from, const handshake::Join& join) {
    const auto channel = dial(from, stranger.handle.further.front().address, stranger.handle.further.front().tcp_port);
    channel->send(join);
    for (int i = 0; i < 500 && !channel->closed(); ++i) {
      static_cast<void>(channel->on_readable());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return channel->closed();
  };
  CHECK(ends(Stranger::kFrom + 1, {.token = {}, .member = 1}));
  CHECK(ends(Stranger::kFrom, {.token = token, .member = 1}));
  CHECK(ends(Stranger::kFrom + 1, {.token = token, .member = 0}));
  CHECK(ends(Stranger::kFrom + 1, {.token = token, .member = 3}));
  CHECK_FALSE(main->closed());
  CHECK_FALSE(ends(Stranger::kFrom + 1, {.token = token, .member = 1}));
}

/// Resets these channels at once.
void reset_all(std::initializer_list<std::unique_ptr<Channel>*> channels) {
  for (auto* channel : channels) {
    (*channel)->reset_at_end();
    channel->reset();
  }
}

/// Whether so many frames are acknowledged over the channel.
bool acknowledges(Channel& channel, std::uint32_t frames) {
  return eventually([&] {
    return std::ranges::any_of(channel.on_readable(), [frames](const handshake::Frame& frame) {
      const auto* numbered = std::get_if<handshake::Numbered>(&frame);
      return numbered != nullptr && numbered->acknowledged == frames;
    });
  });
}

TEST_CASE("a peer that loses all paths joins again within the retry time, or is given up after it") {
  DeviceOptions options = fused_options(1, 2);
  for (const bool returns : {true, false}) {
    CAPTURE(returns);
    options.retry_time = returns ? 60 * kSecond : 200 * kMillisecond;
    Stranger stranger(options);
    auto first = stranger.greet(stranger.hello());
    REQUIRE(answers(*first, 1).size() == 1);
    auto second = stranger.join(1);
    FrameNumbers numbers;
    second->send(numbers.add(handshake::Close{1}));  // of a connection that there is not
    REQUIRE(acknowledges(*second, 1));               // so the victim has read the join
    reset_all({&first, &second});
    if (!returns) {
      CHECK(eventually([&] { return stranger.victim.counters().peers == 0; }));
      continue;
    }
    second = stranger.join(1);
    second->send(numbers.add(handshake::Close{1}));
    CHECK(acknowledges(*second, 2));
    first = stranger.join(0);
    first->send(numbers.add(handshake::Close{1}));
    CHECK(acknowledges(*first, 3));
    CHECK(stranger.victim.counters().peers == 1);
  }
}

TEST_CASE("frames of a fused peer that break the rules end the peer") {
  using handshake::Frame;
  const auto numbered = [](const Frame& frame) {
    FrameNumbers numbers;
    return Frame(numbers.add(frame));
  };
  const std::vector<std::byte> garbage(3, std::byte{0xFF});
  const std::vector<Frame> wrong{
      handshake::Numbered{.number = 1, .acknowledged = 0, .body = {std::byte{7}}},
      handshake::Numbered{.number = 0, .acknowledged = 5, .body = {}},
      handshake::Numbered{.number = 0, .acknowledged = 0, .body = garbage},
      numbered(numbered(handshake::Close{1})),
      numbered(handshake::Join{.token = {}, .member = 1}),
      numbered(handshake::MemberDown{2}),
      numbered(handshake::NewQp{.lane = 0, .qp = {.qpn = (2U << 24) | 5, .first_psn = 0}, .ece = {}, .path_mtu = {}}),
      numbered(handshake::NewQp{.lane = 2, .qp = {.qpn = 5, .first_psn = 0}, .ece = {}, .path_mtu = {}}),
      numbered(handshake::QpReady{1}),
  };
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    CAPTURE(i);
    Stranger stranger;
    const auto main = stranger.greet(stranger.hello());
    REQUIRE(answers(*main, 1).size() == 1);
    main->send(wrong[i]);
    const auto got = answers(*main, 100);
    REQUIRE_FALSE(got.empty());
    CHECK(std::holds_alternative<handshake::Refuse>(got.back()));
    CHECK(eventually([&] { return stranger.victim.counters().peers == 0; }));
  }
}

TEST_CASE("a lane is not renewed onto a member that has not joined") {
  Stranger stranger;
  const auto main = stranger.greet(stranger.hello());
  REQUIRE(answers(*main, 1).size() == 1);
  FrameNumbers numbers;
  main->send(numbers.add(
      handshake::NewQp{.lane = 0, .qp = {.qpn = (1U << 24) | 5, .first_psn = 0}, .ece = {}, .path_mtu = {}}));
  const auto got = answers(*main, 1);
  REQUIRE_FALSE(got.empty());
  const auto* answer = std::get_if<handshake::Numbered>(&got.front());
  REQUIRE(answer != nullptr);
  const auto inner = handshake::decode(answer->body);
  REQUIRE(inner);
  const auto* refusal = std::get_if<handshake::NewQp>(&*inner);
  REQUIRE(refusal != nullptr);
  CHECK(refusal->qp.qpn == 0);
}

/// Adds the numbered frames of a channel to `all` until it has so many of this kind.
template <typename Kind>
bool hears(Channel& channel, std::vector<handshake::Frame>& all, std::ptrdiff_t times) {
  return eventually([&] {
    for (const handshake::Frame& frame : channel.on_readable()) {
      const auto* numbered = std::get_if<handshake::Numbered>(&frame);
      const auto inner = numbered != nullptr ? handshake::decode(numbered->body) : std::nullopt;
      if (inner) all.push_back(*inner);
    }
    return std::ranges::count_if(all, [](const auto& frame) { return std::holds_alternative<Kind>(frame); }) >= times;
  });
}

TEST_CASE("the peer is not told of an old queue pair that is lost when its work is over") {
  Stranger stranger;
  const auto main = stranger.greet(stranger.hello());
  const auto got = answers(*main, 1);
  REQUIRE(got.size() == 1);
  const std::uint32_t old = std::get<handshake::Welcome>(got.front()).endpoint.qps.at(1).qpn;
  const auto second = stranger.join(1);
  FrameNumbers numbers;
  second->send(numbers.add(handshake::Close{1}));  // of a connection that there is not
  REQUIRE(acknowledges(*second, 1));               // so the victim has read the join
  const auto ask = [&](std::uint32_t qpn) {
    main->send(numbers.add(handshake::NewQp{.lane = 1, .qp = {.qpn = qpn, .first_psn = 0}, .ece = {}, .path_mtu = {}}));
  };
  std::vector<handshake::Frame> frames;
  ask(50);
  REQUIRE(hears<handshake::QpReady>(*main, frames, 1));
  main->send(numbers.add(handshake::QpReady{1}));
  REQUIRE(hears<handshake::QpDrained>(*main, frames, 1));
  stranger.broken = old & 0xFFFFFF;
  REQUIRE(hears<handshake::MemberDown>(*main, frames, 1));
  main->send(numbers.add(handshake::QpDrained{1}));
  ask(51);
  CHECK(hears<handshake::QpReady>(*main, frames, 2));
  CHECK(std::ranges::none_of(frames,
                             [](const auto& frame) { return std::holds_alternative<handshake::QpStopped>(frame); }));
}

TEST_CASE("frames that only fused devices send end a peer that is not") {
  Stranger stranger;
  auto plain = stranger.hello();
  plain.endpoint.further.clear();
  plain.endpoint.qps = {{.qpn = 17, .first_psn = 0}};
  for (const handshake::Frame& frame :
       std::vector<handshake::Frame>{handshake::Numbered{.number = 0, .acknowledged = 0, .body = {}},
                                     handshake::MemberDown{0}, handshake::Join{.token = {}, .member = 0}}) {
    const auto main = stranger.greet(plain);
    REQUIRE(answers(*main, 1).size() == 1);
    main->send(frame);
    const auto got = answers(*main, 100);
    REQUIRE_FALSE(got.empty());
    CHECK(std::holds_alternative<handshake::Refuse>(got.back()));
  }
}

}  // namespace
}  // namespace paralet
