// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/context.hpp"
#include "engine/counters.hpp"
#include "engine/registrations.hpp"
#include "engine/request.hpp"

namespace paralet {

/// Why a message that is longer than its receive fails.
std::string overrun_text(std::uint64_t message_bytes, std::uint64_t receive_bytes);

/// How requests end: done, or failed with a reason; with counts of both. What was registered for one request alone is
/// released first.
class Results {
 public:
  Results(Context& context, Registrations& registrations) : context_(context), registrations_(registrations) {}

  /// The device has the request, which finish, fail or register_memory ends.
  void begin(const Request& request) PARALET_REQUIRES(progress_lock) {
    if (request.kind != Request::Kind::kFence) ++pending_;
  }
  /// Sends and receives that have begun and not ended. While there are any, callers may poll.
  [[nodiscard]] std::size_t pending() const PARALET_REQUIRES(progress_lock) { return pending_; }
  /// Registers the request's memory where it is not yet (Registrations). False, and the request has failed, when that
  /// is refused.
  bool register_memory(Request& request) PARALET_REQUIRES(progress_lock);
  /// The same before the request takes the progress lock, where that is possible. Any thread.
  bool register_ahead(Request& request);
  /// The request is done. `Request::bytes` is set.
  void finish(Request& request) PARALET_REQUIRES(progress_lock);
  void fail(Request& request, Failure failure, const std::string& error) PARALET_REQUIRES(progress_lock);
  /// For a request without memory registered for it alone. Any thread.
  void report_failure(Request& request, Failure failure, const std::string& error);
  /// One more of what `finish` and `fail` do not count.
  void count(std::uint64_t MessageCounters::*counter) PARALET_REQUIRES(progress_lock) { ++(messages_.*counter); }
  [[nodiscard]] MessageCounters counters() const PARALET_REQUIRES(progress_lock);

 private:
  void note_failure(Request& request, Failure failure, const std::string& error);
  void note_end(const Request& request) PARALET_REQUIRES(progress_lock) {
    if (request.kind != Request::Kind::kFence && !request.is_copy) --pending_;
  }

  Context& context_;
  Registrations& registrations_;
  MessageCounters messages_ PARALET_GUARDED_BY(progress_lock);  ///< without those that failed
  std::size_t pending_ PARALET_GUARDED_BY(progress_lock) = 0;
  std::atomic<std::uint64_t> failed_{0};
};

}  // namespace paralet
