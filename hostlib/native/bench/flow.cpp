// SPDX-License-Identifier: Apache-2.0
#include "flow.hpp"

#include <fcntl.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/file_descriptor.hpp"
#include "engine/device.hpp"
#include "messages.hpp"
#include "socket_flow.hpp"
#include "two_processes.hpp"

namespace paralet::bench {
namespace {

constexpr unsigned kSendsInProgress = 16;

/// One side of a pair, ready: exchanges this number of messages in each direction.
using End = std::function<void(std::uint64_t messages)>;

enum class Side : std::uint8_t { kNear, kFar };

bool sends(const FlowCase& c, Side side) { return c.both_ways || side == Side::kNear; }
bool receives(const FlowCase& c, Side side) { return c.both_ways || side == Side::kFar; }

/// Requests of one direction that are submitted again and again, in turn.
class Turns {
 public:
  Turns(Device& device, const std::shared_ptr<Connection>& connection, Request::Kind kind, std::uint64_t bytes,
        unsigned count)
      : device_(&device), buffers_(count, std::vector<std::byte>(bytes, std::byte{1})) {
    for (auto& buffer : buffers_) {
      const bool receive = kind == Request::Kind::kReceive;
      const std::uint32_t rkey = receive ? device.register_memory(buffer.data(), buffer.size()) : 0;
      requests_.push_back(prepared(connection, kind, buffer, rkey));
    }
  }
  void start(std::uint64_t messages) {
    submitted_ = done_ = 0;
    wanted_ = messages;
    while (submitted_ < std::min<std::uint64_t>(wanted_, requests_.size())) submit();
  }
  [[nodiscard]] bool over() const { return done_ == wanted_; }
  [[nodiscard]] bool ready() const { return !over() && ended(*requests_[done_ % requests_.size()]); }
  void advance() {
    while (ready()) {
      check_done(*requests_[done_ % requests_.size()]);
      ++done_;
      if (submitted_ < wanted_) submit();
    }
  }

 private:
  void submit() { device_->submit(requests_[submitted_++ % requests_.size()]); }

  Device* device_;
  std::vector<std::vector<std::byte>> buffers_;
  std::vector<std::shared_ptr<Request>> requests_;
  std::uint64_t wanted_ = 0;
  std::uint64_t submitted_ = 0;
  std::uint64_t done_ = 0;
};

/// A device with one connection, and its messages in each direction.
struct DeviceEnd {
  DeviceEnd(const FlowCase& c, Side side, int link, const std::string& back_end) : device(options(c, side, back_end)) {
    if (side == Side::kFar) {
      const auto listener = device.listen();
      tell(link, listener->handle);
      connection = accept(device, *listener);
    } else {
      connection = device.connect(hear<decltype(Listener::handle)>(link));
      wait_open(device, *connection);
    }
    if (receives(c, side)) turns.emplace_back(device, connection, Request::Kind::kReceive, c.message_bytes, c.ahead);
    if (sends(c, side)) turns.emplace_back(device, connection, Request::Kind::kSend, c.message_bytes, kSendsInProgress);
  }
  static DeviceOptions options(const FlowCase& c, Side side, const std::string& back_end) {
    DeviceOptions out;
    out.address = side == Side::kNear ? c.near : c.far;
    out.policy.lanes = 8;
    out.shards = c.shards;
    out.busy_poll = 10 * kSecond;
    set_back_end(out, back_end);
    return out;
  }
  void exchange(std::uint64_t messages) {
    for (Turns& turn : turns) turn.start(messages);
    const auto over = [this] { return std::ranges::all_of(turns, &Turns::over); };
    while (!over()) {
      device.wait([this] { return std::ranges::any_of(turns, &Turns::ready); }, std::nullopt);
      for (Turns& turn : turns) turn.advance();
    }
  }

  Device device;
  std::shared_ptr<Connection> connection;
  std::vector<Turns> turns;
};

End open_end(const FlowCase& c, Side side, int link) {
  if (const auto* back_end = std::get_if<BackEnd>(&c.transport)) {
    const auto end = std::make_shared<DeviceEnd>(c, side, link, back_end->name);
    return [end](std::uint64_t messages) { end->exchange(messages); };
  }
  const auto* sockets = std::get_if<Sockets>(&c.transport);
  SocketOptions options{.threads = sockets != nullptr ? sockets->threads : 0,
                        .per_thread = sockets != nullptr ? sockets->per_thread : 1,
                        .message_bytes = c.message_bytes,
                        .window = kSendsInProgress,
                        .blocking = sockets == nullptr && !c.both_ways};
  const auto comms = std::make_shared<std::vector<std::unique_ptr<SocketComm>>>();
  // Both sides open the connections of the way there before those of the way back.
  for (const Side sender : {Side::kNear, Side::kFar}) {
    if (!sends(c, sender)) continue;
    options.sends = sender == side;
    options.window = options.sends ? kSendsInProgress : c.ahead;
    comms->push_back(std::make_unique<SocketComm>(
        side == Side::kFar ? accept_sockets(link, c.far, options) : connect_sockets(link, c.near, options), options));
  }
  return [comms](std::uint64_t messages) {
    for (auto& comm : *comms) comm->start(messages);
    for (bool over = false; !over;) {
      over = true;
      for (auto& comm : *comms) over = comm->progress() && over;
    }
    for (auto& comm : *comms) comm->finish();
  };
}

/// While it exists, the calling thread and the threads that it starts run on the cores of this side. Sides share cores
/// where the process may not use so many.
class OnOwnCores {
 public:
  OnOwnCores(const FlowCase& c, unsigned pair, Side side) {
    check(::sched_getaffinity(0, sizeof before_, &before_) == 0, "sched_getaffinity");
    std::vector<int> all;
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &before_)) all.push_back(core);
    }
    const std::size_t first = std::size_t{c.cores} * (2 * pair + (side == Side::kNear ? 0 : 1));
    cpu_set_t own;
    CPU_ZERO(&own);
    for (std::size_t i = first; i < first + c.cores; ++i) CPU_SET(all[i % all.size()], &own);
    check(::sched_setaffinity(0, sizeof own, &own) == 0, "sched_setaffinity");
  }
  OnOwnCores(const OnOwnCores&) = delete;
  OnOwnCores& operator=(const OnOwnCores&) = delete;
  ~OnOwnCores() { ::sched_setaffinity(0, sizeof before_, &before_); }

 private:
  cpu_set_t before_{};
};

std::vector<End> open_ends(const FlowCase& c, Side side, int link) {
  std::vector<End> ends;
  for (unsigned pair = 0; pair < c.pairs; ++pair) {
    const OnOwnCores cores(c, pair, side);
    ends.push_back(open_end(c, side, link));
  }
  return ends;
}

void run(const FlowCase& c, const std::vector<End>& ends, Side side, std::uint64_t messages) {
  std::vector<std::exception_ptr> errors(ends.size());
  std::vector<std::thread> threads;
  threads.reserve(ends.size());
  for (unsigned pair = 0; pair < ends.size(); ++pair) {
    threads.emplace_back([&, pair] {
      const OnOwnCores cores(c, pair, side);
      try {
        ends[pair](messages);
      } catch (...) {
        errors[pair] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

void enter(const std::string& network_namespace) {
  if (network_namespace.empty()) return;
  const FileDescriptor file(::open(network_namespace.c_str(), O_RDONLY | O_CLOEXEC));
  check(file.valid() && ::setns(file.get(), CLONE_NEWNET) == 0, "setns");
}

}  // namespace

FlowFigures flow(const FlowCase& c) {
  const std::uint64_t messages = std::max<std::uint64_t>(kSendsInProgress, c.total_bytes / c.message_bytes);
  FlowFigures out;
  with_two_processes(
      [&](int link) {
        enter(c.far_namespace);
        const auto ends = open_ends(c, Side::kFar, link);
        run(c, ends, Side::kFar, kSendsInProgress);
        tell(link, spent([&] { run(c, ends, Side::kFar, messages); }));
        hear<char>(link);
      },
      [&](int link) {
        const auto ends = open_ends(c, Side::kNear, link);
        run(c, ends, Side::kNear, kSendsInProgress);
        const Spent near = spent([&] { run(c, ends, Side::kNear, messages); });
        const auto far = hear<Spent>(link);
        const auto bytes = static_cast<double>(messages * c.message_bytes * c.pairs * (c.both_ways ? 2 : 1));
        out = {.gbps = bytes * 8 / static_cast<double>(std::max(near.time, far.time)),
               .near_ns_per_byte = static_cast<double>(near.processor) / bytes,
               .far_ns_per_byte = static_cast<double>(far.processor) / bytes};
        tell(link, char{});
      });
  return out;
}

Transport parse_transport(const std::string& text) {
  constexpr std::string_view kSockets = "sockets:";
  if (text == "stream") return Stream{};
  if (!text.starts_with(kSockets)) {
    DeviceOptions unused;
    set_back_end(unused, text);
    return BackEnd{text};
  }
  Sockets out;
  const char* const end = text.data() + text.size();
  const auto threads = std::from_chars(text.data() + kSockets.size(), end, out.threads);
  const bool split = threads.ec == std::errc() && threads.ptr != end && *threads.ptr == 'x';
  const auto each = split ? std::from_chars(threads.ptr + 1, end, out.per_thread) : threads;
  if (!split || each.ec != std::errc() || each.ptr != end || out.per_thread == 0 || out.threads > 16 ||
      out.per_thread > 16 || (out.threads == 0 && out.per_thread > 1)) {
    throw std::invalid_argument("a transport of sockets is sockets:TxS, T from 0 to 16 threads of S from 1 to 16");
  }
  return out;
}

}  // namespace paralet::bench
