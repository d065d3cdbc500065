// SPDX-License-Identifier: Apache-2.0
// Finds which source port takes which path, on fabrics whose hash nobody knows: a packet with the flow's own addresses
// and ports and a small time to live makes the router on its path name itself (ICMP time exceeded). Starts no thread:
// whoever owns it calls `poll`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/file_descriptor.hpp"
#include "base/random.hpp"
#include "prober/observation.hpp"
#include "prober/payload.hpp"
#include "prober/queued_error.hpp"
#include "prober/schedule.hpp"

namespace paralet::prober {

struct ProberCounters {
  std::uint64_t sent = 0;
  std::uint64_t answered = 0;
  /// ICMP messages that quote a packet that this prober has not sent: forged ones, late ones, or those of other
  /// programs.
  std::uint64_t mismatched = 0;
  std::uint64_t limited = 0;  ///< probes that waited because a router answers no faster
};

class Prober {
 public:
  /// Throws DeviceError when no epoll set can be opened.
  explicit Prober(const Limits& limits);

  /// The number of the target, for probes. Both addresses are of one family.
  std::size_t add(const Target& target);
  void add(const Probe& probe) { schedule_.add(probe); }
  /// Forgets the probes that wait to leave. Returns how many there were.
  std::size_t drop_waiting() { return schedule_.drop_waiting(); }
  /// Forgets one such probe if any waits to leave.
  void drop_waiting(const Probe& probe) { schedule_.drop_waiting(probe); }

  /// Takes answers and sends what is due at `now`. Returns the time at which it has to be called again, at the latest;
  /// kNever when all probes are settled.
  Nanos poll(Nanos now);
  /// Readable when `poll` has answers to take.
  [[nodiscard]] int fd() const { return epoll_.get(); }
  /// Polls until all probes are settled or `until` has come. True when all are.
  bool run(Nanos until);

  [[nodiscard]] bool idle() const { return schedule_.idle(); }
  std::vector<Observation> take_observations() { return schedule_.take_observations(); }
  std::vector<Failure> take_failures() { return schedule_.take_failures(); }
  [[nodiscard]] ProberCounters counters() const;
  [[nodiscard]] const Target& target(std::size_t number) const { return targets_[number]; }

 private:
  struct Sent {
    FileDescriptor socket;
    Payload payload{};
  };
  void receive();
  void on_event(std::size_t slot, Nanos now);
  void on_answer(std::size_t slot, const QueuedError& error, Nanos now);
  void send(const Schedule::Departure& departure, Nanos now);

  Schedule schedule_;
  std::vector<Target> targets_;
  std::vector<Sent> sent_;  ///< by slot
  FileDescriptor epoll_;
  SplitMix64 nonces_;  ///< only routers on the path see one, and they may answer what they like
  ProberCounters counters_;
};

}  // namespace paralet::prober
