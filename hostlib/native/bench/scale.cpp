// SPDX-License-Identifier: Apache-2.0
#include "scale.hpp"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/signal.hpp"
#include "engine/device.hpp"
#include "messages.hpp"
#include "two_processes.hpp"

namespace paralet::bench {
namespace {

constexpr std::uint32_t kHub = 0x7F000001;        // 127.0.0.1
constexpr std::uint32_t kFirstPeer = 0x7F000101;  // 127.0.1.1
constexpr std::size_t kMessageBytes = 256 * 1024;
constexpr std::size_t kMessagesInFlight =
    128;  // messages to all peers together, so that all cases use the caches alike
constexpr std::uint64_t kBytes = 2ULL << 30;

using Handle = decltype(Listener::handle);
using Buffer = std::vector<std::byte>;

DeviceOptions options(std::uint32_t address, const ScaleCase& c) {
  DeviceOptions out;
  out.address = address;
  out.policy.lanes = c.lanes;
  out.policy.lanes_per = c.lanes_per;
  set_back_end(out, c.back_end);
  out.retry_time = 120 * kSecond;  // what is measured is not how long a busy machine keeps a process waiting
  return out;
}

struct PeerSide {
  PeerSide(const ScaleCase& c, std::uint32_t index)
      : device(options(kFirstPeer + index, c)), listener(device.listen()) {}
  Device device;
  std::shared_ptr<Listener> listener;
  std::shared_ptr<Connection> connection;
};

/// The peers, each with its connection from the hub.
std::vector<std::unique_ptr<PeerSide>> open_peers(int link, const ScaleCase& c) {
  std::vector<std::unique_ptr<PeerSide>> sides;
  for (unsigned i = 0; i < c.peers; ++i) {
    sides.push_back(std::make_unique<PeerSide>(c, i));
    tell(link, sides.back()->listener->handle);
  }
  for (auto& side : sides) side->connection = accept(side->device, *side->listener);
  return sides;
}

std::vector<std::shared_ptr<Connection>> connect_peers(Device& hub, const std::vector<Handle>& handles) {
  std::vector<std::shared_ptr<Connection>> connections;
  connections.reserve(handles.size());
  for (const Handle& handle : handles) connections.push_back(hub.connect(handle));
  for (const auto& connection : connections) wait_open(hub, *connection);
  return connections;
}

std::vector<Handle> hear_handles(int link, const ScaleCase& c) {
  std::vector<Handle> handles;
  handles.reserve(c.peers);
  for (unsigned i = 0; i < c.peers; ++i) handles.push_back(hear<Handle>(link));
  return handles;
}

/// Requests in progress. Each is submitted again when it is done, until all have run the given number of times.
class Traffic {
 public:
  void add(Device& device, std::shared_ptr<Request> request) { streams_.push_back({&device, std::move(request), 0}); }
  void start(std::uint64_t times) {
    for (Stream& stream : streams_) {
      stream.left = times;
      stream.device->submit(stream.request);
    }
  }
  [[nodiscard]] bool over() const {
    return std::ranges::all_of(streams_, [](const Stream& stream) { return stream.left == 0; });
  }
  /// Whether a request has ended, so that advance has work.
  [[nodiscard]] bool ready() const {
    return std::ranges::any_of(streams_,
                               [](const Stream& stream) { return stream.left > 0 && ended(*stream.request); });
  }
  void advance() {
    for (Stream& stream : streams_) {
      if (stream.left == 0 || !ended(*stream.request)) continue;
      check_done(*stream.request);
      if (--stream.left > 0) stream.device->submit(stream.request);
    }
  }

 private:
  struct Stream {
    Device* device;
    std::shared_ptr<Request> request;
    std::uint64_t left;
  };
  std::vector<Stream> streams_;
};

/// Message `i` in flight goes to peer i modulo the number of peers. Each message has its own buffers.
std::vector<Buffer> make_buffers() { return {kMessagesInFlight, Buffer(kMessageBytes, std::byte{1})}; }

/// Runs as many rounds of receives as the hub sends. Each peer's progress thread moves its packets, as on a host of its
/// own; this thread sleeps until a message has arrived.
void run(Traffic& traffic, std::uint64_t rounds) {
  for (traffic.start(rounds); !traffic.over(); traffic.advance()) {
    completion_signal().wait([&] { return traffic.ready(); }, std::nullopt);
  }
}

void add_receives(Traffic& traffic, std::vector<std::unique_ptr<PeerSide>>& sides, std::vector<Buffer>& buffers) {
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    PeerSide& side = *sides[i % sides.size()];
    const std::uint32_t rkey = side.device.register_memory(buffers[i].data(), buffers[i].size());
    traffic.add(side.device, prepared(side.connection, Request::Kind::kReceive, buffers[i], rkey));
  }
}

void add_sends(Traffic& traffic, Device& hub, const std::vector<std::shared_ptr<Connection>>& connections,
               std::vector<Buffer>& buffers) {
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    traffic.add(hub, prepared(connections[i % connections.size()], Request::Kind::kSend, buffers[i]));
  }
}

constexpr std::uint64_t kRounds = kBytes / kMessageBytes / kMessagesInFlight;

constexpr auto kUntilIdle = std::chrono::milliseconds(2200);

struct MemoryUse {
  double allocated = 0;
  double resident = 0;
};

/// Memory of this process: allocated by malloc, and resident.
MemoryUse memory_use() {
  const struct mallinfo2 info = ::mallinfo2();
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm").ignore(32, ' ') >> pages;
  return {.allocated = static_cast<double>(info.uordblks + info.hblkhd),
          .resident = static_cast<double>(pages) * static_cast<double>(::sysconf(_SC_PAGESIZE))};
}

/// Sends until every lane has carried a message and grown its window.
std::uint64_t warm_up_rounds(const ScaleCase& c) { return 1 + std::uint64_t{c.lanes} * c.peers / kMessagesInFlight; }

/// The far end: peers that have received on every lane and have open receives.
struct Receivers {
  Receivers(int link, const ScaleCase& c) : sides(open_peers(link, c)) {
    add_receives(traffic, sides, buffers);
    run(traffic, warm_up_rounds(c));
  }
  std::vector<std::unique_ptr<PeerSide>> sides;
  std::vector<Buffer> buffers = make_buffers();
  Traffic traffic;
};

}  // namespace

ScaleFlow scale_flow(const ScaleCase& c) {
  ScaleFlow out;
  with_two_processes(
      [&](int link) {
        const OnCores cores(OnCores::Share::kOthers);
        Receivers peers(link, c);
        const Nanos before = processor_time();
        run(peers.traffic, kRounds);
        tell(link, processor_time() - before);
        hear<char>(link);
      },
      [&](int link) {
        const OnCores cores(OnCores::Share::kFirst);
        Device hub(options(kHub, c));
        const auto connections = connect_peers(hub, hear_handles(link, c));
        auto buffers = make_buffers();
        Traffic traffic;
        add_sends(traffic, hub, connections, buffers);
        run(traffic, warm_up_rounds(c));
        const Nanos before = processor_time();
        const Nanos begin = now();
        run(traffic, kRounds);
        const auto time = static_cast<double>(now() - begin);
        const auto processor = static_cast<double>(processor_time() - before);
        const auto peers = static_cast<double>(hear<Nanos>(link));
        constexpr auto kAll = static_cast<double>(kRounds * kMessagesInFlight * kMessageBytes);
        out = {.gbps = kAll * 8 / time, .hub_ns_per_byte = processor / kAll, .peer_ns_per_byte = peers / kAll};
        tell(link, char{});
      });
  return out;
}

ScaleMemory scale_memory(const ScaleCase& c) {
  ScaleMemory out;
  with_two_processes(
      [&](int link) {
        const Receivers peers(link, c);
        hear<char>(link);
      },
      [&](int link) {
        Device hub(options(kHub, c));
        const auto handles = hear_handles(link, c);
        ::malloc_trim(0);
        const MemoryUse before = memory_use();
        const auto connections = connect_peers(hub, handles);
        {
          auto buffers = make_buffers();
          Traffic traffic;
          add_sends(traffic, hub, connections, buffers);
          run(traffic, warm_up_rounds(c));
        }
        std::this_thread::sleep_for(kUntilIdle);
        ::malloc_trim(0);
        const MemoryUse after = memory_use();
        const double qps = c.lanes * c.peers;
        out = {.allocated_bytes = (after.allocated - before.allocated) / qps,
               .resident_bytes = (after.resident - before.resident) / qps};
        tell(link, char{});
      });
  return out;
}

}  // namespace paralet::bench
