// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/work.hpp"
#include "engine/progress_lock.hpp"
#include "engine/request.hpp"
#include "engine/results.hpp"
#include "engine/shard.hpp"

namespace paralet {

/// Requests of kind kFence: done when all received data is visible to the device whose memory it was written to.
class MemoryFences {
 public:
  MemoryFences(Shard& shard, Results& results) : shard_(shard), results_(results) {}

  void start(std::shared_ptr<Request> request) PARALET_REQUIRES(progress_lock);
  void on_fenced(const Completion& completion) PARALET_REQUIRES(progress_lock);
  /// The unfinished ones that use a registration.
  [[nodiscard]] std::vector<std::shared_ptr<Request>> users_of(std::uint32_t rkey) const
      PARALET_REQUIRES(progress_lock) {
    return fences_.with_registration(rkey);
  }
  /// The device is closed.
  void fail_all() PARALET_REQUIRES(progress_lock);

 private:
  Shard& shard_;
  Results& results_;
  RequestList fences_ PARALET_GUARDED_BY(progress_lock);  ///< posted and not finished
};

}  // namespace paralet
