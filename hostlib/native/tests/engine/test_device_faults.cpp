// SPDX-License-Identifier: Apache-2.0
// Lost, duplicated, reordered and corrupted packets, and silent peers.
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "engine/device_fixture.hpp"
#include "soft/soft_backend.hpp"

namespace paralet {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture

TEST_CASE("messages arrive despite injected faults of every kind in both directions") {
  const std::array<Faults, 5> kinds{{{.drop = 0.05},
                                     {.duplicate = 0.05},
                                     {.reorder = 0.05},
                                     {.corrupt = 0.05},
                                     {.drop = 0.05, .duplicate = 0.05, .reorder = 0.05, .corrupt = 0.05}}};
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    CAPTURE(kind);
    DeviceOptions one = options(kA);
    DeviceOptions other = options(kB);
    one.faults = other.faults = kinds[kind];
    one.faults.seed = 1;
    other.faults.seed = 2;
    Device a(one);
    Device b(other);
    const Joined joined(a, b);
    for (const std::size_t bytes : {0, 100, 200'000}) joined.check(bytes);
    CHECK(a.counters().discards.injected + b.counters().discards.injected > 0);
  }
}

TEST_CASE("a silent peer is given up after retry_time") {
  DeviceOptions deaf = options(kB);
  Device b(deaf);
  DeviceOptions one = options(kA);
  one.retry_time = 500 * kMillisecond;
  one.faults.drop = 1;  // receives nothing: neither acknowledgements nor advertisements
  Device a(one);
  const Joined joined(a, b);
  const auto waiting = joined.receive(Bytes(100));
  const auto receiving = joined.receive_back(Bytes(100));  // its advertisement is never acknowledged
  REQUIRE(wait(receiving) == State::kFailed);
  CHECK(receiving->failure == Failure::kTransport);
  CHECK(receiving->error.find("the peer did not answer within the retry time") != std::string::npos);
  // The peer has received everything and waits for nothing, so it learns of the failure from the channel.
  REQUIRE(wait(waiting) == State::kFailed);
  CHECK(waiting->failure == Failure::kClosed);
  CHECK(waiting->error == "127.0.0.1 gave up: " + receiving->error);
}

/// `soft` over a network that loses the packets of some source ports.
class LossyPorts final : public SoftBackend {
 public:
  using SoftBackend::SoftBackend;
  std::atomic<int> dead{0};  ///< a port, 0: none

 protected:
  SendResult hand_to_kernel(int fd, const IpAddress& address, std::uint16_t port, std::span<iovec> pieces,
                            std::uint16_t segment_bytes) override {
    sockaddr_in own{};
    socklen_t length = sizeof own;
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length);
    if (ntohs(own.sin_port) == dead) return SendResult::kSent;
    return SoftBackend::hand_to_kernel(fd, address, port, pieces, segment_bytes);
  }
};

TEST_CASE("adaptive lanes leave a dead path within their timeouts, with any number of lanes") {
  for (const unsigned lanes : {1U, 4U, 32U}) {
    CAPTURE(lanes);
    SoftOptions soft;
    soft.address = kA;
    auto owned = std::make_unique<LossyPorts>(soft);
    LossyPorts& network = *owned;
    DeviceOptions adaptive = options(kA, lanes);
    adaptive.policy.kind = PolicyKind::kAdaptive;
    adaptive.policy.seed = lanes;
    Device a(adaptive, std::move(owned));
    Device b(options(kB, lanes));
    const Joined joined(a, b);
    joined.check(100);
    const std::uint16_t dead = a.counters().lanes.at(0).qp.port;
    network.dead = dead;
    const auto moved = [&] { return a.counters().lanes.at(0).qp.port != dead; };
    const Bytes out = random_fill(lanes, 30'000);
    for (int round = 0; round < 100 && !moved(); ++round) {
      std::vector<MessagePtr> messages;
      for (unsigned i = 0; i < 4 * lanes; ++i) {
        messages.push_back(joined.receive(Bytes(out.size())));
        messages.push_back(joined.send(out));
      }
      for (const MessagePtr& message : messages) {
        require_done(message);
        REQUIRE(message->memory == out);
      }
    }
    CHECK(moved());
  }
}

/// `soft` over a kernel that refuses some packets.
class PickyKernel final : public SoftBackend {
 public:
  struct Refusal {
    SendResult result = SendResult::kRefused;
    int error = 0;
    bool batches_only = false;
    std::size_t longer_than = 0;  ///< bytes
  };
  PickyKernel(const SoftOptions& options, const Refusal& refusal) : SoftBackend(options), refusal_(refusal) {}

 protected:
  SendResult hand_to_kernel(int fd, const IpAddress& address, std::uint16_t port, std::span<iovec> pieces,
                            std::uint16_t segment_bytes) override {
    std::size_t bytes = 0;
    for (const iovec& piece : pieces) bytes += piece.iov_len;
    if (bytes > refusal_.longer_than && (segment_bytes != 0 || !refusal_.batches_only)) {
      errno = refusal_.error;
      return refusal_.result;
    }
    return SoftBackend::hand_to_kernel(fd, address, port, pieces, segment_bytes);
  }

 private:
  Refusal refusal_;
};

/// A device whose kernel refuses packets, and what it says to the user.
struct Refused {
  Refused(const PickyKernel::Refusal& refusal, Nanos retry_time) : a(options(kA), backend(refusal, retry_time)) {}
  std::unique_ptr<Backend> backend(const PickyKernel::Refusal& refusal, Nanos retry_time) {
    SoftOptions soft;
    soft.address = kA;
    soft.retry_time = retry_time;
    soft.log = [this](const std::string& sentence) { said += sentence + "\n"; };
    return std::make_unique<PickyKernel>(soft, refusal);
  }
  std::string said;
  Device a;
  Device b{options(kB)};
};

TEST_CASE("where the kernel refuses batches, packets leave one by one and nothing is lost") {
  for (const int error : {EMSGSIZE, EINVAL, EIO}) {
    CAPTURE(error);
    Refused pair({.error = error, .batches_only = true}, 10 * kSecond);
    const Joined joined(pair.a, pair.b);
    joined.check(300'000);
    CHECK(pair.said == std::string("the kernel refused a batch of packets (UDP_SEGMENT) to 127.0.0.2: ") +
                           std::strerror(error) +
                           "; packets to it leave one by one from now on, which costs throughput\n");
    const auto sum = [](Device& device, std::uint64_t QpCounters::*counter) {
      std::uint64_t total = 0;
      for (const LaneCounters& lane : device.counters().lanes) total += lane.qp.counters.*counter;
      return total;
    };
    // In a stall of the machine a packet that arrived may be sent again, but none is that was lost.
    CHECK(eventually([&] { return sum(pair.a, &QpCounters::retransmits) == sum(pair.b, &QpCounters::duplicates); }));
  }
}

TEST_CASE("packets that the kernel refuses fail the message at once, with the reason") {
  Refused pair({.error = EMSGSIZE, .longer_than = 1000}, 3600 * kSecond);
  const Joined joined(pair.a, pair.b);
  const auto received = joined.receive(Bytes(100'000));
  const std::string error = error_of(joined.send(Bytes(100'000)));
  CHECK(error.find("the kernel refused its packets: Message too long (errno 90); the path MTU is ") !=
        std::string::npos);
  CHECK(wait(received) == State::kFailed);
}

TEST_CASE("a refusal that may pass counts as loss, and is the reason when the retry time is over") {
  Refused pair({.result = SendResult::kFailed, .error = EPERM, .longer_than = 1000}, 300 * kMillisecond);
  const Joined joined(pair.a, pair.b);
  const auto received = joined.receive(Bytes(100'000));
  CHECK(error_of(joined.send(Bytes(100'000)))
            .ends_with("the kernel refused its packets: Operation not permitted (errno 1)"));
  CHECK(wait(received) == State::kFailed);
}

}  // namespace
}  // namespace paralet
