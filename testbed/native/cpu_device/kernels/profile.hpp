// SPDX-License-Identifier: Apache-2.0
// The counters that NCCL's proxy reads for profiler plugins: when a channel started and completed each work.
#pragma once

#include <span>

#include "block.hpp"

namespace paralet::cpu_device {

class Profile {
 public:
  // Counts `works` as started. `enabled`: the flag of a work that asks for it; not present in older versions.
  Profile(const Block& block, std::span<std::byte* const> works, Field enabled);

  // Counts them as completed. Not called where the work was aborted.
  void completed() const;

 private:
  void record(Field which) const;

  const Block& block_;
  std::span<std::byte* const> works_;
  Field enabled_;
};

}  // namespace paralet::cpu_device
