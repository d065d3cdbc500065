// SPDX-License-Identifier: Apache-2.0
// A snapshot of a device's counters for other programs: a memfd that root and programs of the same user open through
// /proc/PID/fd. It has no name in a file system and no port, so it ends with the process. hostlib/snapshots.py
// describes the layout and reads it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/file_descriptor.hpp"
#include "engine/counters.hpp"
#include "engine/options.hpp"

namespace paralet {

/// Properties of a device that do not change while it is open.
struct DeviceIdentity {
  std::array<std::byte, 16> guid{};
  BackendKind backend = BackendKind::kSoft;
  std::string policy;
  std::vector<DeviceNic> nics;  ///< one, or the members of a fused device
  std::uint32_t path_mtu = 0;
  unsigned lanes = 0;
  double line_rate_bps = 0;  ///< 0: unknown
};

/// Not thread-safe: the device uses it with its progress lock held.
class LiveCounters {
 public:
  static constexpr const char* kName = "paralet-stats";  ///< as in /proc/PID/fd: "/memfd:paralet-stats (deleted)"
  static constexpr std::uint32_t kVersion = 2;
  static constexpr Nanos kEvery = 100 * kMillisecond;
  /// The period is at least this times the number of lanes and of connections under way.
  static constexpr Nanos kPerRecord = 50 * kMicrosecond;
  static constexpr std::size_t kMostUnderWay = 1024;  ///< connections in a snapshot

  /// Publishes nothing.
  LiveCounters() = default;
  /// Publishes nothing if the kernel refuses a memfd: counters must not make transfers fail.
  explicit LiveCounters(DeviceIdentity identity);

  /// Whether publish would write: collecting the counters costs time.
  [[nodiscard]] bool due(Nanos now) const { return file_.valid() && now >= next_; }
  /// Replaces the snapshot if any counter differs.
  void publish(Nanos now, const DeviceCounters& counters);

  [[nodiscard]] int fd() const { return file_.get(); }

 private:
  [[nodiscard]] std::vector<std::byte> encode(const DeviceCounters& counters) const;

  FileDescriptor file_;
  DeviceIdentity identity_;
  Nanos next_ = 0;
  std::uint64_t generation_ = 0;
  std::size_t published_ = 0;  ///< hash of the counters in the file
};

}  // namespace paralet
