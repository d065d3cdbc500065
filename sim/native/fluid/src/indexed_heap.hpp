// SPDX-License-Identifier: Apache-2.0
// A priority queue whose entries can be moved and removed by number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace paralet::fluid {

/// An indexed binary heap: at most one time per item, the earliest on top. Of equal times the lower item is on top.
class IndexedHeap {
 public:
  using Item = std::uint32_t;

  [[nodiscard]] bool empty() const { return heap_.empty(); }
  [[nodiscard]] double top_time() const { return heap_.front().first; }
  [[nodiscard]] Item top() const { return heap_.front().second; }

  /// Inserts the item, or changes its time.
  void set(Item item, double time) {
    if (item >= position_.size()) position_.resize(item + std::size_t{1}, kAbsent);
    if (position_[item] == kAbsent) {
      position_[item] = heap_.size();
      heap_.emplace_back(time, item);
    } else {
      heap_[position_[item]].first = time;
    }
    sift(position_[item]);
  }

  /// No effect when the item is absent.
  void remove(Item item) {
    if (item >= position_.size() || position_[item] == kAbsent) return;
    const std::size_t hole = std::exchange(position_[item], kAbsent);
    const Entry last = heap_.back();
    heap_.pop_back();
    if (hole == heap_.size()) return;
    put(last, hole);
    sift(hole);
  }

 private:
  using Entry = std::pair<double, Item>;
  static constexpr std::size_t kAbsent = std::numeric_limits<std::size_t>::max();

  void put(const Entry& entry, std::size_t where) {
    heap_[where] = entry;
    position_[entry.second] = where;
  }

  /// Moves the entry at `where` up or down to its place.
  void sift(std::size_t where) {
    const Entry entry = heap_[where];
    while (where > 0 && entry < heap_[(where - 1) / 2]) {
      put(heap_[(where - 1) / 2], where);
      where = (where - 1) / 2;
    }
    for (std::size_t child = 2 * where + 1; child < heap_.size(); child = 2 * where + 1) {
      if (child + 1 < heap_.size() && heap_[child + 1] < heap_[child]) ++child;
      if (!(heap_[child] < entry)) break;
      put(heap_[child], where);
      where = child;
    }
    put(entry, where);
  }

  std::vector<Entry> heap_;
  std::vector<std::size_t> position_;  // by item
};

}  // namespace paralet::fluid
