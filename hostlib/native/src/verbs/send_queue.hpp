// SPDX-License-Identifier: Apache-2.0
// The send queue of one queue pair: requests wait here until the NIC has room, and are finished in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "backend/backend.hpp"
#include "verbs/memory.hpp"
#include "verbs/verbs_library.hpp"

namespace paralet::verbs {

/// Work requests of one queue pair that the NIC holds; more wait in the send queue.
inline constexpr std::uint32_t kSendDepth = 128;

/// What the send queues of a device share.
struct SendContext {
  const Memory& memory;
  std::vector<Completion>& completions;  ///< finished requests are appended
  std::size_t limit = 0;                 ///< requests of all queues that the NIC may hold at a time
  Nanos min_timeout = 0;                 ///< silence that counts as a timeout, at least
  Nanos retry_time = 0;                  ///< of the device
  std::size_t held = 0;                  ///< requests that the NIC holds
  std::uint64_t held_bytes = 0;          ///< their payload
  bool port_down = false;                ///< failures meanwhile are the port's
  Nanos polled_at = 0;                   ///< the last poll began then: what ended before is known
};

class SendQueue {
 public:
  /// `qp` is connected before the first request is handed over. The context must outlive the queue.
  SendQueue(SendContext& context, ibv_qp* qp, std::uint32_t inline_bytes)
      : context_(context), qp_(qp), inline_bytes_(inline_bytes) {}
  /// Payload bytes of a packet.
  void set_path_mtu(std::uint32_t bytes) { path_mtu_ = bytes; }

  /// Queues a request. On a failed queue it completes at once as flushed.
  void post(const WorkRequest& request);
  /// Hands over as many requests as the NIC has room for, as one chain. True when there were any.
  bool hand_over(Nanos now);
  /// A request has ended, and with it all before it, which were not signalled. `seen`: when its completion was fetched.
  void finish(const ibv_wc& wc, Nanos seen);
  /// Moves the queue pair to the error state. The requests that the NIC holds come back as flushed.
  /// A request that comes back as flushed without this call, or that the NIC has given up, breaks the queue: it appends
  /// a completion kQpBroken, and keeps all requests until `fail` or `stop`.
  void fail();
  /// The queue pair has failed, and not because of a request: appends a completion kQpFailed even with nothing posted.
  void lose(Status why);
  /// The path is lost: appends a completion kQpBroken even with nothing posted, and keeps all requests as above.
  void lose_path(Status why);
  /// The engine is told otherwise that the requests must go another way: no kQpBroken follows.
  void leave_path() { left_ = true; }

  /// Moves the queue pair to the error state and keeps the requests that have not ended, for take_back.
  void stop();
  /// After stop: does not wait for the NIC any longer.
  void abandon() { fail_all(Status::kFlushed); }
  /// After stop: whether the NIC has returned all requests.
  [[nodiscard]] bool stopped() const { return stopping_ && posted_.empty(); }
  /// After stop: Backend::take_back.
  std::vector<WorkRequest> take_back(std::uint32_t received);

  [[nodiscard]] bool failed() const { return failed_; }
  /// Whether there are requests that the NIC does not have yet.
  [[nodiscard]] bool waiting() const { return !waiting_.empty(); }
  /// Whether hand_over would hand over a request.
  [[nodiscard]] bool ready() const;
  /// Whether the NIC has been silent for longer than a timeout about requests that it holds.
  [[nodiscard]] bool silent() const { return !failing_ && !failed_ && expiries(overdue()) > 0; }
  /// Whether every request has ended.
  [[nodiscard]] bool idle() const { return waiting_.empty() && posted_.empty(); }
  /// Requests that count in SendContext::held, also after a failure: their completions are still to come.
  [[nodiscard]] std::size_t held() const { return posted_.size() + flushing_; }

  // The time of a completion is known only to the interval between two polls. Comparisons of paths use accurate samples
  // only, so that a host that polls late does not make a path look slow.
  [[nodiscard]] PathEstimate estimate() const;
  /// Smoothed time of a short request from hand-over to the poll that found it done, and the smallest. 0 before the
  /// first.
  [[nodiscard]] Nanos latency() const { return latency_; }
  [[nodiscard]] Nanos min_latency() const { return min_latency_; }
  /// Smoothed time of a short request, of accurate samples. 0 before the first.
  [[nodiscard]] Nanos path_latency() const { return path_latency_; }
  /// Smoothed time per payload byte of long requests in nanoseconds, of accurate samples. 0 before the first.
  [[nodiscard]] double byte_time() const { return byte_time_; }
  /// Whether the NIC holds a long request.
  [[nodiscard]] bool holds_long() const { return held_bytes_ >= kLongBytes; }
  /// Times that the NIC has been silent for a timeout, each twice as long as the last.
  [[nodiscard]] std::uint64_t timeouts() const { return timeouts_ + expiries(overdue()); }
  [[nodiscard]] std::uint64_t packets() const { return packets_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  static constexpr std::uint64_t kLongBytes = 16384;
  /// A time that lies between two others.
  struct Between {
    Nanos earliest = 0;
    Nanos latest = 0;
    [[nodiscard]] Nanos middle() const { return earliest + (latest - earliest) / 2; }
    [[nodiscard]] Nanos width() const { return latest - earliest; }
  };
  struct Posted {
    WorkRequest request;
    Nanos at = 0;
    bool measured = false;  ///< short, and behind nothing long: its latency is a round trip
    bool probe = false;     ///< posted by this queue
    MrHandle temporary;
  };
  void complete(const WorkRequest& request, Status status);
  void complete_oldest(Status status);
  void measure(std::uint64_t last, Nanos seen);
  void measure_latency(Nanos begun, const Between& ended);
  void measure_bytes(std::uint64_t bytes, Nanos begun, const Between& ended);
  void fail_all(Status status);
  [[nodiscard]] bool wants_probe(Nanos now) const;
  [[nodiscard]] Nanos overdue() const;
  [[nodiscard]] std::uint64_t expiries(Nanos overdue) const;

  SendContext& context_;
  ibv_qp* qp_;
  std::uint32_t inline_bytes_;
  std::uint32_t path_mtu_ = 0;
  bool failed_ = false;
  bool failing_ = false;  ///< `fail` was called
  bool broken_ = false;   ///< the NIC moved the queue pair to the error state by itself
  bool left_ = false;     ///< `leave_path` was called
  bool stopping_ = false;
  std::deque<WorkRequest> waiting_;
  std::deque<Posted> posted_;     ///< handed to the NIC, oldest first
  std::deque<Posted> withdrawn_;  ///< after stop: requests that have not ended
  std::uint64_t held_bytes_ = 0;  ///< payload of `posted_`
  std::uint64_t oldest_ = 0;      ///< sequence number, and wr_id, of the first of `posted_`
  std::size_t flushing_ = 0;      ///< requests of a failed queue whose completions are ignored
  std::uint32_t consumed_ = 0;    ///< ended requests that took a receive of the peer
  std::uint64_t packets_ = 0;
  std::uint64_t bytes_ = 0;
  Nanos latency_ = 0;
  Nanos min_latency_ = 0;
  Nanos path_latency_ = 0;
  Nanos path_floor_ = 0;  ///< smallest round trip by accurate samples
  double byte_time_ = 0;
  Between period_;                  ///< when the period that measures `byte_time_` began, in times of completions
  std::uint64_t period_bytes_ = 0;  ///< that ended in it
  Between ended_;                   ///< when a request ended last
  Nanos measured_at_ = 0;           ///< when `latency_` was measured last
  Nanos progressed_at_ = 0;         ///< when a request ended last
  std::uint64_t timeouts_ = 0;
};

}  // namespace paralet::verbs
