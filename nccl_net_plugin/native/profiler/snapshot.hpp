// SPDX-License-Identifier: Apache-2.0
// The operation log for other programs: a memfd that root and programs of the same user open through /proc/PID/fd.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "operation_log.hpp"

namespace paralet::profiler {

/// The operations as a snapshot: a line `paralet-operations 1 CRC BYTES` (CRC-32 as zlib's and length of what follows),
/// then a JSON object `{generation, time_s, pid, operations}`.
std::string snapshot_of(const std::vector<Operation>& operations, std::uint64_t generation, std::int64_t now_ns);

/// An unnamed file in memory. Holds nothing if the kernel refuses it: a profiler must not make a job fail.
class SnapshotFile {
 public:
  static constexpr const char* kName = "paralet-operations";  ///< as in /proc/PID/fd: "/memfd:NAME (deleted)"

  SnapshotFile();
  SnapshotFile(const SnapshotFile&) = delete;
  SnapshotFile& operator=(const SnapshotFile&) = delete;
  ~SnapshotFile();

  /// Replaces the content with one write. The file never shrinks.
  void write(const std::string& snapshot);

 private:
  int file_;
};

}  // namespace paralet::profiler
