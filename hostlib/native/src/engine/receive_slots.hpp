// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/request.hpp"

namespace paralet {

/// The open receives towards one peer by slot, the number that names them in flowlets.
class ReceiveSlots {
 public:
  static constexpr std::size_t kMost = 65536;  ///< slots have 16 bits

  [[nodiscard]] bool full() const { return free_.empty() && receives_.size() == kMost; }
  /// Gives the receive a slot; not while they are `full`.
  std::uint16_t take(Request& receive) {
    if (free_.empty()) {
      free_.push_back(static_cast<std::uint16_t>(receives_.size()));
      receives_.push_back(nullptr);
    }
    const std::uint16_t slot = free_.back();
    free_.pop_back();
    receives_[slot] = &receive;
    return slot;
  }
  /// `slot` is taken.
  void release(std::uint16_t slot) {
    receives_[slot] = nullptr;
    free_.push_back(slot);
  }
  /// nullptr where no receive has this slot.
  [[nodiscard]] Request* at(std::uint32_t slot) const { return slot < receives_.size() ? receives_[slot] : nullptr; }
  /// Whether a receive with this registration is open.
  [[nodiscard]] bool awaits(std::uint32_t rkey) const {
    return std::ranges::any_of(
        receives_, [rkey](const Request* receive) { return receive != nullptr && receive->registration() == rkey; });
  }

 private:
  std::vector<Request*> receives_;  ///< by slot
  std::vector<std::uint16_t> free_;
};

}  // namespace paralet
