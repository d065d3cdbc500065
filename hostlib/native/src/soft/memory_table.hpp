// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace paralet {

/// Registered memory by rkey. Remote addresses are offsets from the region's start, so a peer never learns a pointer.
/// One thread only.
class MemoryTable {
 public:
  /// Returns an unpredictable rkey that no live region has.
  std::uint32_t add(std::byte* base, std::uint64_t length);
  /// The memory is the caller's again; what still comes for it is taken and thrown away until the region is removed.
  void retire(std::uint32_t rkey);
  [[nodiscard]] bool retired(std::uint32_t rkey) const;
  /// False when there is no such region.
  bool remove(std::uint32_t rkey) { return regions_.erase(rkey) == 1; }
  /// Where [offset, offset + length) of the region lies, nullptr when rkey or range is wrong (IBTA 9.7.5.2.3) or the
  /// region retired.
  [[nodiscard]] std::byte* resolve(std::uint32_t rkey, std::uint64_t offset, std::uint64_t length) const;
  [[nodiscard]] std::size_t size() const { return regions_.size(); }

 private:
  struct Region {
    std::byte* base;
    std::uint64_t length;
    bool retired = false;
  };
  std::unordered_map<std::uint32_t, Region> regions_;
};

}  // namespace paralet
