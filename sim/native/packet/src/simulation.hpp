// SPDX-License-Identifier: Apache-2.0
// A discrete-event packet simulation: hosts, switches and links, and the messages that cross them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "context.hpp"
#include "network.hpp"
#include "routes.hpp"
#include "transport.hpp"

namespace paralet::packet {

/// Deterministic by seed: all random numbers come from one generator, and events of one time have an order.
class Simulation {
 public:
  Simulation(std::span<const std::int64_t> rates, std::span<const Time> propagations, std::span<const NodeId> heads,
             std::span<const bool> switches, const NetworkOptions& network, const TransportOptions& transport,
             std::uint64_t seed)
      : context_(seed),
        network_(context_, routes_, rates, propagations, heads, switches, network),
        transport_(context_, routes_, network_, transport) {
    network_.attach(transport_);
  }
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  [[nodiscard]] Routes& routes() { return routes_; }
  [[nodiscard]] Network& network() { return network_; }
  [[nodiscard]] Transport& transport() { return transport_; }
  [[nodiscard]] Time now() const { return context_.now; }
  [[nodiscard]] std::uint64_t events() const { return events_; }

  /// Advances time to `until`, to the delivery of a milestone, or until all messages are delivered. Handles events at
  /// `until`, too. Milestones just delivered are in `transport().reached()`.
  void advance(Time until) {
    const auto& reached = transport_.reached();
    transport_.reached().clear();
    transport_.activate();
    while (transport_.undelivered() > 0 && reached.empty() && !context_.events.empty() &&
           context_.events.first().at <= until) {
      const Event event = context_.events.take();
      context_.now = event.at;
      ++events_;
      handle(event);
    }
    if (transport_.undelivered() > 0 && reached.empty() && until != kForever) context_.now = until;
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
      case EventKind::kReorder:
        return transport_.reorder_timer(event.subject);
      case EventKind::kRelease:
        return transport_.release(event.subject);
      case EventKind::kFlush:
        return network_.flush(event.subject);
    }
  }

  Context context_;
  Routes routes_;
  Network network_;
  Transport transport_;
  std::uint64_t events_ = 0;
};

}  // namespace paralet::packet
