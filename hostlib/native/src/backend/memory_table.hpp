// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace paralet {

/// Registered memory by rkey. Remote addresses are offsets into the region, so a peer never learns a pointer. Not
/// thread-safe.
class MemoryTable {
 public:
  /// Returns an unpredictable rkey that no live region has.
  std::uint32_t add(std::byte* base, std::uint64_t length);
  /// The same under an rkey of another table, which has the same regions as this one.
  void add_as(std::uint32_t rkey, std::byte* base, std::uint64_t length);
  /// Returns the memory to the caller. Until the region is removed, data for it is accepted and dropped.
  void retire(std::uint32_t rkey);
  [[nodiscard]] bool retired(std::uint32_t rkey) const;
  /// False when there is no such region.
  bool remove(std::uint32_t rkey) { return regions_.erase(rkey) == 1; }
  /// Pointer to [offset, offset + length) of the region. nullptr when rkey or range is wrong (IBTA 9.7.5.2.3), or when
  /// the region is retired.
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
