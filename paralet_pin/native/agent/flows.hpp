// SPDX-License-Identifier: Apache-2.0
// The flows of a host's programs that have asked for a port, and which of them are elephants. No I/O: requests, what
// the kernel counts and the time in; announcements and releases out.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/ip_address.hpp"

namespace paralet::pin {

/// Where flows go that switches can tell apart by their source port alone.
struct Course {
  bool tcp = true;
  IpAddress local;
  IpAddress remote;
  std::uint16_t remote_port = 0;
  auto operator<=>(const Course&) const = default;  // NOLINT(modernize-use-nullptr): of what the compiler writes
};

/// A flow's number among those of its course. The path service has a client for each (`service_ports`), so that several
/// connections between two hosts get paths of their own.
using Slot = unsigned;
inline constexpr Slot kSlots = 16;

/// A flow that the agent knows. The program's side of it is `Flow` in planned_ports.hpp: tests link both, so the two
/// need different names.
struct KnownFlow {
  std::uint64_t id = 0;
  Course course;
  Slot slot = 0;
  int pid = 0;
  std::string what;
  std::uint16_t port = 0;                  ///< that the program has, 0: it still waits
  std::uint16_t planned_port = 0;          ///< of the plan as it is now
  std::vector<std::string> path;           ///< of `port`, as a path service has told it; empty: none has
  Nanos probed_at = 0;                     ///< the latest time at which `path` was probed; 0: it was predicted
  std::uint16_t refused_port = 0;          ///< of an earlier slot, which was not free
  std::uint64_t declared = 0;              ///< bytes that the program has declared: nobody counts those of a queue pair
  std::uint64_t bytes = 0;                 ///< sent so far
  std::optional<std::uint64_t> announced;  ///< bytes of the open elephant; none is open without
  unsigned timeouts = 0;                   ///< of its TCP, in a row: nobody answers
  bool tried = false;                      ///< its program has called connect for it, or will not do so any more
  bool came = false;                       ///< it was seen connected
  bool may_retry = false;                  ///< connect did not connect it at once, and it was not seen connected
  Nanos begun = 0;                         ///< when it got its port, or while it waits for one, when it asked
  Nanos active_at = 0;                     ///< when bytes moved last
};

struct NotPinned {
  int pid = 0;
  Course course;
  std::string what;
  std::string why;
};

class Flows {
 public:
  static constexpr std::size_t kMost = 65536;
  static constexpr std::size_t kMostNotPinned = 256;    ///< the newest ones are kept
  static constexpr std::uint64_t kElephant = 1U << 20;  ///< bytes of a connection that carries data (`places.SENT`)
  static constexpr Nanos kConnecting = 10 * kSecond;    ///< within which a program connects, however busy its host is
  /// Within which nearly every program connects. What has no socket after it ends where another flow needs its slot.
  static constexpr Nanos kMostlyConnected = 20 * kMillisecond;
  static constexpr Nanos kTimeWait = 60 * kSecond;  ///< for which the kernel keeps a connection that has ended
  /// After which a connection that has sent anything counts as one that lasts. It is announced with 0 bytes at first,
  /// and then with what it has sent. One of datagrams, which nobody counts, is released after as long without a byte.
  static constexpr Nanos kLasting = 1 * kSecond;
  /// Without a byte, after which an elephant is announced as a connection that has hardly sent anything.
  static constexpr Nanos kElephantIdle = 60 * kSecond;

  /// What the path service has to be told of a flow.
  struct News {
    enum class Kind : std::uint8_t { kAnnounce, kRelease };
    Kind kind = Kind::kAnnounce;
    KnownFlow flow;
  };

  /// A flow begins, in the first slot of its course that is free. nullptr where none is, or there are kMost flows.
  KnownFlow* begin(const Course& course, int pid, std::string what, std::uint64_t declared, Nanos now);
  /// The port of a flow's slot is not free: it goes on to the next slot. False where none is left; the flow then ends.
  bool next_slot(std::uint64_t id, Nanos now);
  void end(std::uint64_t id);
  KnownFlow* find(std::uint64_t id);
  /// Whether a flow that begins could have one of the first `slots` slots of its course.
  [[nodiscard]] bool has_slot(const Course& course, std::size_t slots, Nanos now) const;
  /// The flows of a course, by slot.
  [[nodiscard]] std::vector<KnownFlow*> of(const Course& course);
  /// nullptr: the slot is free.
  KnownFlow* find(const Course& course, Slot slot);
  /// Courses with flows, or with slots that may still rest.
  [[nodiscard]] std::size_t courses() const { return courses_.size(); }
  [[nodiscard]] const std::map<std::uint64_t, KnownFlow>& all() const { return flows_; }
  std::map<std::uint64_t, KnownFlow>& all() { return flows_; }

  /// The program has called connect for a flow, or will not do so any more: without a socket, it has ended.
  void tried(std::uint64_t id);
  /// `sent` bytes in all were counted of a flow; nothing: there is no socket of it.
  void counted(std::uint64_t id, std::optional<std::uint64_t> sent, Nanos now);
  /// Bytes of a flow that the program has counted itself.
  void sent(std::uint64_t id, std::uint64_t bytes, Nanos now);
  /// The process has ended, and its flows with it.
  void left(int pid);

  void not_pinned(NotPinned flow);
  [[nodiscard]] const std::deque<NotPinned>& not_pinned() const { return not_pinned_; }

  /// Everything since the last call, in order.
  std::vector<News> take_news() { return std::exchange(news_, {}); }

 private:
  struct Place {
    std::uint64_t flow = 0;  ///< 0: none
    Nanos rests_until = 0;   ///< when it may be taken, once it has no flow
  };
  using Places = std::array<Place, kSlots>;

  std::optional<Slot> take_slot(const Course& course, std::uint64_t id, Nanos now);
  void leave_slot(const KnownFlow& flow, Nanos rests_until);
  void forget_rested(Nanos now);
  void forget_if_empty(const Course& course, Nanos now);
  void announce(KnownFlow& flow, std::uint64_t bytes);
  void release(KnownFlow& flow);

  std::map<std::uint64_t, KnownFlow> flows_;
  std::map<Course, Places> courses_;
  std::deque<std::pair<Nanos, Course>> resting_;  ///< courses with a slot that rests, and until when
  std::deque<NotPinned> not_pinned_;
  std::vector<News> news_;
  std::uint64_t next_id_ = 1;
};

}  // namespace paralet::pin
