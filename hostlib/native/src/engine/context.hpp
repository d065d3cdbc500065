// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.hpp"
#include "base/clock.hpp"
#include "base/ip_address.hpp"
#include "engine/counters.hpp"
#include "engine/handshake.hpp"
#include "engine/options.hpp"
#include "engine/polling.hpp"
#include "engine/progress_lock.hpp"

namespace paralet {

/// What all parts of a device use: its options and identity, the way to wake it, and what it has to do soon.
struct Context {
  /// Throws DeviceError where the options do not fit the back end.
  Context(const DeviceOptions& given, const Backend& backend);

  /// Of a member of a fused device; member 0 of others.
  [[nodiscard]] const IpAddress& own_address(unsigned member) const {
    return member == 0 ? options.address : options.fused_with[member - 1];
  }

  // Constant once the device is open.
  const DeviceOptions options;
  handshake::Guid guid{};
  std::uint32_t path_mtu = 0;
  std::vector<DeviceNic> nics;  ///< one, or the members of a fused device
  const std::shared_ptr<Polling> polling = std::make_shared<Polling>();

  // Any thread.
  std::atomic<bool> closed{false};  ///< Device::close was called
  std::atomic<bool> stop{false};    ///< ends the progress thread

  /// When housekeeping is due. A part that leaves work to it sets 0.
  Nanos next_housekeeping PARALET_GUARDED_BY(progress_lock) = 0;
  /// Requests have finished: the threads that wait are woken when the lock is released.
  bool finished PARALET_GUARDED_BY(progress_lock) = false;
};

}  // namespace paralet
