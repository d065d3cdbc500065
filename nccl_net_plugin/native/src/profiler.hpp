// SPDX-License-Identifier: Apache-2.0
// Events for NCCL's profiler plugins (paralet_profiler.h). Everything here runs on the thread that posts and tests.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/request.hpp"
#include "paralet_nccl_net.h"

namespace paralet::plugin {

/// Sets NCCL's callback, the same in all communicators; nullptr where NCCL has none.
void set_profiler(ncclProfilerCallback_t callback) noexcept;

/// The events of one message. Empty, and free of cost, unless a profiler has asked for events of the network.
class ProfiledMessage {
 public:
  /// Starts the message's event before the request is submitted. `handle` is NCCL's, nullptr: none. When the profiler
  /// takes the event, the request gets a trace of its flowlets.
  void start(Request& request, void* handle, std::uint32_t peer);
  /// Starts and stops the events of flowlets that began or ended since the last call.
  void follow(const Request& request);
  /// Stops all events: the request is done or has failed.
  void stop(const Request& request);

 private:
  void* handle_ = nullptr;       ///< NCCL's; nullptr: nobody listens
  void* event_ = nullptr;        ///< the profiler's, of the message
  std::vector<void*> flowlets_;  ///< the profiler's, of the flowlets; nullptr once stopped
  std::uint32_t peer_ = 0;
  std::int64_t began_ = 0;
};

}  // namespace paralet::plugin
