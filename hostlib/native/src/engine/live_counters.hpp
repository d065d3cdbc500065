// SPDX-License-Identifier: Apache-2.0
// What a running process lets others see: a snapshot of a device's counters in a memfd, which programs of the same user
// and root open through /proc/PID/fd while the process lives. It has no name in any file system and listens nowhere, so
// nothing of it outlives the process. The layout is told in docs/live-counters.md; hostlib/stats.py reads it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/file_descriptor.hpp"

namespace paralet {

struct DeviceCounters;

/// What stays the same while a device is open.
struct DeviceIdentity {
  std::array<std::byte, 16> guid{};
  std::string interface;
  std::string policy;
  std::uint32_t address = 0;  ///< IPv4, host byte order
  std::uint16_t udp_port = 0;
  std::uint32_t path_mtu = 0;
  unsigned lanes = 0;
  double line_rate_bps = 0;  ///< 0: unknown
};

/// Belongs to whoever drives the device; not for several threads at once.
class LiveCounters {
 public:
  static constexpr const char* kName = "paralet-stats";  ///< as in /proc/PID/fd: "/memfd:paralet-stats (deleted)"
  static constexpr std::uint32_t kVersion = 1;
  static constexpr Nanos kEvery = 100 * kMillisecond;
  static constexpr Nanos kPerLane = 50 * kMicrosecond;  ///< a few thousand lanes are published less often

  /// Publishes nothing.
  LiveCounters() = default;
  /// Where the kernel grants no memfd nothing is published: no transfer may fail for the want of an audience.
  explicit LiveCounters(DeviceIdentity identity);

  /// Whether publish should be called, so that nobody collects counters in vain.
  [[nodiscard]] bool due(Nanos now) const { return file_.valid() && now >= next_; }
  /// Replaces the snapshot, unless nothing but the time differs.
  void publish(Nanos now, const DeviceCounters& counters);

  [[nodiscard]] int fd() const { return file_.get(); }

 private:
  [[nodiscard]] std::vector<std::byte> encode(const DeviceCounters& counters) const;

  FileDescriptor file_;
  DeviceIdentity identity_;
  Nanos next_ = 0;
  std::uint64_t generation_ = 0;
  std::size_t published_ = 0;  ///< hash of what the file holds
};

}  // namespace paralet
