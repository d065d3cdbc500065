// SPDX-License-Identifier: Apache-2.0
// A packet simulation: hosts, switches and links, and the messages that go over them, from event to event.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core.hpp"
#include "network.hpp"
#include "transport.hpp"

namespace paralet::packet {

/// What is random is drawn from one seed, and events of one moment have an order: two runs of one build are the same.
class Simulation {
 public:
  Simulation(std::span<const std::int64_t> rates, std::span<const NodeId> heads, std::span<const bool> switches,
             const NetworkOptions& network, const TransportOptions& transport, std::uint64_t seed)
      : core_(seed),
        network_(core_, routes_, rates, heads, switches, network),
        transport_(core_, routes_, network_, transport) {
    network_.attach(transport_);
  }
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  [[nodiscard]] Routes& routes() { return routes_; }
  [[nodiscard]] Network& network() { return network_; }
  [[nodiscard]] Transport& transport() { return transport_; }
  [[nodiscard]] Time now() const { return core_.now; }
  [[nodiscard]] std::uint64_t events() const { return events_; }

  /// Let time pass up to and including `until`, or until all messages are delivered.
  void advance(Time until) {
    transport_.consider();
    while (transport_.undelivered() > 0 && !core_.events.empty() && core_.events.first().at <= until) {
      const Event event = core_.events.take();
      core_.now = event.at;
      ++events_;
      handle(event);
    }
    if (transport_.undelivered() > 0 && until != kForever) core_.now = until;
  }

  static constexpr Time kForever = std::numeric_limits<Time>::max();

 private:
  void handle(const Event& event) {
    switch (event.kind()) {
      case EventKind::kSent:
        return network_.sent(event.subject);
      case EventKind::kArrived:
        return network_.arrived(event.subject);
      case EventKind::kPause:
        return network_.pause(event.subject);
      case EventKind::kResume:
        return network_.resume(event.subject);
      case EventKind::kTimer:
        return transport_.timer(event.subject);
      case EventKind::kRelease:
        return transport_.release(event.subject);
      case EventKind::kFlush:
        return network_.flush(event.subject);
    }
  }

  Core core_;
  Routes routes_;
  Network network_;
  Transport transport_;
  std::uint64_t events_ = 0;
};

}  // namespace paralet::packet
