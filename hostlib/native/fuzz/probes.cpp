// SPDX-License-Identifier: Apache-2.0
// Fuzzes what comes to a prober: control messages of the error queue, quoted bytes, and answers in any order. A quote
// of other bytes than those that were sent is never taken for an answer. Every probe is settled, with at most so many
// packets, and no more are under way than the window allows, nor two of one source port.
#include <sys/socket.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "prober/payload.hpp"
#include "prober/queued_error.hpp"
#include "prober/schedule.hpp"
#include "script.hpp"

namespace paralet::fuzz {
namespace {

using namespace prober;  // NOLINT(google-build-using-namespace): this file is about it
using Bytes = std::vector<std::byte>;

constexpr std::uint32_t kHere = 0x0A000001;
constexpr std::uint32_t kThere = 0x0A000101;

/// A copy of exactly its size, so that AddressSanitizer detects reads beyond it.
Bytes exactly(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

void try_control(std::span<const std::byte> bytes) {
  const Bytes control = exactly(bytes);
  const auto error = parse_queued_error(control);
  if (!error || error->kind == ErrorKind::kLocal) return;
  // Whoever sent it is in these bytes, in network byte order.
  const auto& address = error->sender.bytes();
  const std::size_t skipped = error->sender.is_ipv4() ? 12 : 0;
  const auto found = std::search(control.begin(), control.end(), address.begin() + static_cast<std::ptrdiff_t>(skipped),
                                 address.end(), [](std::byte a, std::uint8_t b) { return a == std::byte{b}; });
  require(found != control.end());
}

void try_quote(Script script) {
  const std::uint16_t source_port = script.u16();
  const Target target{.from = kHere,
                      .to = kThere,
                      .destination_port = script.u16(),
                      .protocol = script.flag() ? Protocol::kUdp : Protocol::kTcp};
  const Payload payload = payload_of(target, {.source_port = source_port, .qpn = script.u32()}, script.u64());
  const SocketAddress destination(script.flag() ? kThere : script.u32(), script.u16());
  const Bytes quoted = exactly(script.bytes(kPayloadBytes + 8));
  if (!quotes(target, source_port, payload, destination, quoted)) return;
  require(destination.address() == target.to && destination.port() == target.destination_port);
  if (target.protocol == Protocol::kUdp) {
    require(std::equal(quoted.begin(),
                       quoted.begin() + static_cast<std::ptrdiff_t>(std::min(quoted.size(), kPayloadBytes)),
                       payload.begin()));
  }
}

void try_schedule(Script script) {
  const Limits limits{.rate = static_cast<double>(script.u8()),
                      .router_rate = static_cast<double>(script.u8() % 4),
                      .router_burst = 1.0 + script.u8() % 8,
                      .timeout = 1 + script.u8(),
                      .once_timeout = 50,
                      .attempts = 1U + script.u8() % 3,
                      .window = 1U + script.u8() % 4};
  Schedule schedule(limits);
  std::map<std::size_t, Probe> under_way;
  std::size_t added = 0;
  Nanos now = 0;
  const auto expire = [&] {
    for (const std::size_t slot : schedule.expire(now)) require(under_way.erase(slot) == 1);
  };
  const auto depart = [&] {
    while (const auto left = schedule.next(now)) {
      for (const auto& [slot, probe] : under_way) {
        require(slot != left->slot && probe.source_port != left->probe.source_port);
      }
      under_way.emplace(left->slot, left->probe);
      require(under_way.size() <= limits.window);
    }
  };
  for (int steps = 0; steps < 200 && !script.done(); ++steps) {
    switch (script.u8() % 6) {
      case 0: {
        const std::uint8_t which = script.u8();
        schedule.add({.target = which % 2U,
                      .source_port = static_cast<std::uint16_t>(50000 + script.u8() % 4),
                      .ttl = static_cast<std::uint8_t>(1 + script.u8() % 3),
                      .once = (which & 2U) != 0});
        ++added;
        break;
      }
      case 1:
        now += script.u32() % (2 * kSecond);
        expire();
        break;
      case 2:
        depart();
        break;
      case 3:
        if (under_way.empty()) break;
        schedule.answered(under_way.begin()->first, Answer::kHop, IpAddress(script.u8()), now);
        under_way.erase(under_way.begin());
        break;
      case 4:
        if (under_way.empty()) break;
        schedule.failed(under_way.begin()->first, 1, std::nullopt);
        under_way.erase(under_way.begin());
        break;
      default:
        if (under_way.empty()) break;
        schedule.postpone(under_way.begin()->first, now);
        under_way.erase(under_way.begin());
        break;
    }
  }
  // Called at its deadlines, it comes to an end.
  for (std::size_t turns = 0; !schedule.idle(); ++turns) {
    require(turns < 16 * (added + 1) * limits.attempts);
    const Nanos due = schedule.deadline();
    require(due != kNever);
    now = std::max(now, due);
    expire();
    depart();
  }
  require(under_way.empty() && schedule.deadline() == kNever);
  const std::size_t packets = schedule.take_observations().size();
  const std::size_t failures = schedule.take_failures().size();
  require(packets <= added * limits.attempts && failures <= added && packets + failures >= added);
}

}  // namespace
}  // namespace paralet::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  paralet::fuzz::Script script(data, size);
  switch (script.u8() % 3) {
    case 0:
      paralet::fuzz::try_control(script.bytes(size));
      break;
    case 1:
      paralet::fuzz::try_quote(script);
      break;
    default:
      paralet::fuzz::try_schedule(script);
      break;
  }
  return 0;
}
