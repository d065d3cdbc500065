// SPDX-License-Identifier: Apache-2.0
// When which probe leaves, and what became of it. No system call is made here: times and answers in, probes out.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/ip_address.hpp"
#include "base/pacer.hpp"
#include "prober/observation.hpp"
#include "prober/router_limits.hpp"

namespace paralet::prober {

struct Limits {
  double rate = 1000;                ///< probes per second in all; 0 is unlimited
  double router_rate = 1;            ///< answers per second that a router gives this host; 0 is unlimited
  double router_burst = 6;           ///< answers that a router gives at once
  Nanos timeout = kSecond / 2;       ///< how long an answer is waited for
  Nanos once_timeout = kSecond / 5;  ///< the same for a probe that is sent `once`: another port may do as well
  unsigned attempts = 4;             ///< packets for a probe that nobody answers
  std::size_t window = 256;          ///< probes under way at a time, each with a socket
};

/// At most one probe of a source port is under way at a time: routers may quote so little that nothing else tells the
/// probes of a port apart, and the kernel hands an error to one socket of those that are bound to the port.
///
/// A probe leaves when each router that may answer has its share of an answer left, since every port is to be answered.
/// One that is sent `once` leaves when any router at its hop can answer: a router that cannot costs it its answer, and
/// nobody else anything. It is not repeated.
class Schedule {
 public:
  explicit Schedule(const Limits& limits);

  void add(const Probe& probe);
  /// Forgets the probes that wait to leave. Returns how many there were.
  std::size_t drop_waiting();
  /// Forgets one such probe if any waits to leave.
  void drop_waiting(const Probe& probe);

  /// A probe that is to leave now. `slot` is below the window, and belongs to it until its answer, its failure or the
  /// timeout.
  struct Departure {
    std::size_t slot = 0;
    Probe probe;
  };
  std::optional<Departure> next(Nanos now);
  /// The kernel has no room for packets: the probe waits again, and all others a little.
  void postpone(std::size_t slot, Nanos now);
  /// The probe has left, a little after `next` gave it.
  void left(std::size_t slot, Nanos at) { slots_[slot].sent_at = at; }
  void answered(std::size_t slot, Answer answer, const IpAddress& router, Nanos now);
  void failed(std::size_t slot, int error, std::optional<IpAddress> router);
  /// The slots of probes that nobody has answered in time. They are free now.
  std::vector<std::size_t> expire(Nanos now);

  /// Whether a slot has a probe under way, and which.
  [[nodiscard]] bool under_way(std::size_t slot) const { return slots_[slot].used; }
  [[nodiscard]] const Probe& probe(std::size_t slot) const { return slots_[slot].probe; }

  /// When `next` or `expire` has something to do, if nothing is answered before; kNever when all is done.
  [[nodiscard]] Nanos deadline() const;
  /// Probes so far that waited because a router answers no faster.
  [[nodiscard]] std::uint64_t limited() const { return limited_; }
  [[nodiscard]] bool idle() const { return waiting_ == 0 && free_.size() == slots_.size(); }

  /// One for each packet, in the order in which they were settled, since the last call.
  std::vector<Observation> take_observations() { return std::exchange(observations_, {}); }
  std::vector<Failure> take_failures() { return std::exchange(failures_, {}); }

 private:
  struct Waiting {
    Probe probe;
    unsigned attempts = 0;
    bool limited = false;
  };
  /// Probes of one target and one time to live: they ask the same routers.
  struct Place {
    std::uint8_t ttl = 1;
    std::deque<Waiting> waiting;
    RouterLimits::Routers routers;
    double unanswered = 0;  ///< probes that have left before any router was known here
  };
  struct Slot {
    bool used = false;
    Probe probe;
    unsigned attempts = 0;
    std::size_t place = 0;
    RouterLimits::Routers charged;  ///< those that might answer
    Nanos sent_at = 0;
    std::uint64_t turn = 0;
  };
  struct Expiry {
    std::size_t slot = 0;
    std::uint64_t turn = 0;
    Nanos at = 0;
  };
  void wait(Place& place, const Waiting& waiting);
  [[nodiscard]] std::optional<std::size_t> sendable(const Place& place) const;
  [[nodiscard]] std::span<const std::size_t> routers_of(const Place& place, const Probe& probe) const;
  [[nodiscard]] Nanos ready_at(const Place& place, const Probe& probe) const;
  void unanswered(std::size_t slot, Nanos now);
  void release(std::size_t slot);

  static constexpr std::size_t kLook = 16;  ///< waiting probes that are looked at for one whose port is free

  Limits limits_;
  Pacer pace_;
  RouterLimits routers_;
  std::map<std::pair<std::size_t, std::uint8_t>, std::size_t> numbers_;  ///< of places, by target and time to live
  std::vector<Place> places_;
  std::array<RouterLimits::Routers, 256> by_ttl_;  ///< that have answered at each hop, whatever the target
  std::size_t turn_ = 0;                           ///< the place that is asked first
  std::size_t waiting_ = 0;
  std::uint64_t limited_ = 0;
  std::vector<Slot> slots_;
  std::vector<std::size_t> free_;
  /// Of other probes, and of those that are sent `once`: by time, since all of these wait equally long. Some have been
  /// settled.
  std::array<std::deque<Expiry>, 2> expiries_;
  std::bitset<65536> busy_;  ///< source ports with a probe under way
  std::uint64_t departures_ = 0;
  Nanos paused_until_ = 0;
  std::vector<Observation> observations_;
  std::vector<Failure> failures_;
};

}  // namespace paralet::prober
