// SPDX-License-Identifier: Apache-2.0
// Routes that take shorter packets than the interface, from the beginning or later.
#include <doctest/doctest.h>
#include <netinet/in.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "engine/device_fixture.hpp"
#include "fused/fused_backend.hpp"
#include "soft/soft_backend.hpp"

namespace paralet {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture

constexpr std::uint32_t kEthernet = 1500;
constexpr std::uint32_t kJumbo = 9000;
constexpr std::size_t kIpUdp = wire::kIpUdpBytes;

/// `soft` over a route that the test makes narrower. The kernel refuses longer packets, as after a router's report.
class NarrowRoute final : public SoftBackend {
 public:
  NarrowRoute(const SoftOptions& options, std::atomic<std::uint32_t>& mtu) : SoftBackend(options), mtu_(mtu) {}

 protected:
  SendResult hand_to_kernel(int fd, const IpAddress& address, std::uint16_t port, std::span<iovec> pieces,
                            std::uint16_t segment_bytes) override {
    std::size_t longest = segment_bytes;
    if (segment_bytes == 0) {
      for (const iovec& piece : pieces) longest += piece.iov_len;
    }
    if (longest + kIpUdp > mtu_) {
      errno = segment_bytes == 0 ? EMSGSIZE : EINVAL;
      return SendResult::kRefused;
    }
    return SoftBackend::hand_to_kernel(fd, address, port, pieces, segment_bytes);
  }
  [[nodiscard]] std::optional<std::uint32_t> ask_route(const UdpEnd& from, const UdpEnd& to) const override {
    CHECK(from.address.is_ipv4() == to.address.is_ipv4());
    return mtu_;
  }

 private:
  std::atomic<std::uint32_t>& mtu_;
};

/// Two devices, of which the first sends over such a route.
struct NarrowScene {
  explicit NarrowScene(std::uint32_t first_mtu, const DeviceOptions& one = options(kA),
                       const DeviceOptions& other = options(kB))
      : mtu(first_mtu), a(logging(one), backend(one)), b(other) {}

  DeviceOptions logging(DeviceOptions given) {
    given.log = [this](const std::string& sentence) { hear(sentence); };
    return given;
  }
  std::unique_ptr<Backend> backend(const DeviceOptions& given) {
    std::vector<std::unique_ptr<Backend>> members;
    std::vector<IpAddress> addresses = given.fused_with;
    addresses.insert(addresses.begin(), given.address);
    for (const IpAddress& address : addresses) {
      SoftOptions soft;
      soft.address = address;
      soft.min_timeout = 5 * kMillisecond;
      soft.log = [this](const std::string& sentence) { hear(sentence); };
      members.push_back(std::make_unique<NarrowRoute>(soft, mtu));
    }
    if (members.size() == 1) return std::move(members.front());
    return std::make_unique<FusedBackend>(std::move(members));
  }
  void hear(const std::string& sentence) {
    const MutexLock guard(mutex);
    said += sentence + "\n";
  }
  std::string heard() {
    const MutexLock guard(mutex);
    return said;
  }
  /// Payload bytes of the packets that the first device sends for a message, about.
  std::uint64_t bytes_per_packet(const Joined& joined) {
    constexpr std::size_t kBytes = 1 << 20;
    const auto total = [this](std::uint64_t QpCounters::*counter) {
      std::uint64_t sum = 0;
      for (const LaneCounters& lane : a.counters().lanes) sum += lane.qp.counters.*counter;
      return sum;
    };
    const std::uint64_t packets = total(&QpCounters::tx_packets);
    const std::uint64_t bytes = total(&QpCounters::tx_bytes);
    const auto received = joined.receive(Bytes(kBytes));
    require_done(joined.send(Bytes(kBytes)));
    require_done(received);
    return (total(&QpCounters::tx_bytes) - bytes) / (total(&QpCounters::tx_packets) - packets);
  }

  std::atomic<std::uint32_t> mtu;
  Mutex mutex;
  std::string said;
  Device a;
  Device b;
};

TEST_CASE("the path MTU fits the route when a peer is set up, though the interface takes longer packets") {
  NarrowScene scene(kEthernet);
  const Joined joined(scene.a, scene.b);
  CHECK(scene.a.path_mtu() == 4096);  // of the interface
  joined.check(300'000);              // both ways
  CHECK(scene.bytes_per_packet(joined) <= 1024);
  CHECK(scene.a.counters().discards.send_errors == 0);
  CHECK(scene.heard().empty());
}

TEST_CASE("the accepting side's route counts as well") {
  NarrowScene scene(kEthernet);
  const Joined joined(scene.b, scene.a);
  joined.check(300'000);
  CHECK(scene.a.counters().discards.send_errors == 0);
}

TEST_CASE("a path MTU that the user set and the route does not take is told") {
  DeviceOptions set = options(kA);
  set.path_mtu = 2048;
  NarrowScene scene(kEthernet, set);
  const Joined joined(scene.a, scene.b);
  joined.check(300'000);
  CHECK(scene.heard() == "path MTU 2048 does not fit the route to 127.0.0.2: lanes to it have 1024\n");
}

TEST_CASE("when the route becomes narrower, lanes go over to shorter packets and every byte arrives once") {
  for (const unsigned lanes : {1U, 4U}) {
    CAPTURE(lanes);
    NarrowScene scene(kJumbo, options(kA, lanes), options(kB, lanes));
    const Joined joined(scene.a, scene.b);
    const std::uint64_t before = scene.bytes_per_packet(joined);
    CHECK(before > 2048);
    for (const std::uint32_t mtu : {kEthernet, 600U}) {
      CAPTURE(mtu);
      std::vector<std::pair<MessagePtr, MessagePtr>> messages;  // to be received, with what is sent
      for (unsigned i = 0; i < 24; ++i) {
        if (i == 8) scene.mtu = mtu;
        const Bytes out = random_fill(i, 40'000 + 7'001 * i);
        if (i % 3 == 2) {
          messages.emplace_back(joined.receive_back(Bytes(out.size()), i), joined.send_back(out, i));
        } else {
          messages.emplace_back(joined.receive(Bytes(out.size()), i), joined.send(out, i));
        }
      }
      for (const auto& [received, sent] : messages) {
        require_done(sent);
        require_done(received);
        REQUIRE(received->memory == sent->memory);
      }
      joined.check(300'000);
      const std::uint32_t fitting = wire::largest_path_mtu(mtu);
      CHECK(scene.bytes_per_packet(joined) <= fitting);
      CHECK(scene.heard().find("the route to 127.0.0.2 takes IP packets of at most " + std::to_string(mtu) +
                               " bytes: lanes go over to path MTU " + std::to_string(fitting)) != std::string::npos);
    }
  }
}

TEST_CASE("lanes of fused devices stay on their members when a route becomes narrower") {
  DeviceOptions fused = options(kA);
  fused.fused_with = {IpAddress(0x7F000003)};
  DeviceOptions there = options(kB);
  there.fused_with = {IpAddress(0x7F000004)};
  NarrowScene scene(kJumbo, fused, there);
  const Joined joined(scene.a, scene.b);
  joined.check(300'000);
  scene.mtu = kEthernet;
  for (int i = 0; i < 8; ++i) joined.check(300'000);
  CHECK(scene.bytes_per_packet(joined) <= 1024);
  for (const LaneCounters& lane : scene.a.counters().lanes) CHECK(lane.member == lane.lane % 2);
}

TEST_CASE("packets that not even the shortest path MTU makes fit fail the message, with the path MTU") {
  NarrowScene scene(kJumbo);
  const Joined joined(scene.a, scene.b);
  joined.check(100'000);
  scene.mtu = 100;
  const auto received = joined.receive(Bytes(100'000));
  const std::string error = error_of(joined.send(Bytes(100'000)));
  CHECK(error.find("Message too long (errno 90); the path MTU is 256 bytes") != std::string::npos);
}

}  // namespace
}  // namespace paralet
