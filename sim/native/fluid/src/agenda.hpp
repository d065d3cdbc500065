// SPDX-License-Identifier: Apache-2.0
// One moment for each of many subjects, which may move; the earliest is at hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace paralet::fluid {

/// A binary heap that knows where each subject is. Of equal moments the lower subject's comes first.
class Agenda {
 public:
  using Subject = std::uint32_t;

  [[nodiscard]] bool empty() const { return heap_.empty(); }
  [[nodiscard]] double at() const { return heap_.front().first; }
  [[nodiscard]] Subject subject() const { return heap_.front().second; }

  /// The subject's moment is `at`, whether it had another or none.
  void set(Subject subject, double at) {
    if (subject >= place_.size()) place_.resize(subject + std::size_t{1}, kNowhere);
    if (place_[subject] == kNowhere) {
      place_[subject] = heap_.size();
      heap_.emplace_back(at, subject);
    } else {
      heap_[place_[subject]].first = at;
    }
    sift(place_[subject]);
  }

  void remove(Subject subject) {
    if (subject >= place_.size() || place_[subject] == kNowhere) return;
    const std::size_t hole = std::exchange(place_[subject], kNowhere);
    const Entry last = heap_.back();
    heap_.pop_back();
    if (hole == heap_.size()) return;
    put(last, hole);
    sift(hole);
  }

 private:
  using Entry = std::pair<double, Subject>;
  static constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();

  void put(const Entry& entry, std::size_t where) {
    heap_[where] = entry;
    place_[entry.second] = where;
  }

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
  std::vector<std::size_t> place_;
};

}  // namespace paralet::fluid
