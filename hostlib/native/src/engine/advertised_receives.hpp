// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "base/ring.hpp"
#include "engine/handshake.hpp"

namespace paralet {

/// The peer's receives on one connection that no send has been matched with, in the peer's order. Advertisements may
/// arrive out of order, and twice.
class AdvertisedReceives {
 public:
  static constexpr std::size_t kMost = 65536;  ///< early ones included
  enum class Verdict : std::uint8_t {
    kTaken,    ///< `take` may find it, and those that waited for it
    kEarly,    ///< it waits for one before it
    kCopy,     ///< of one that came before
    kTooMany,  ///< the peer breaks the rules
  };

  Verdict add(const handshake::Advertisement& advertisement) {
    if (early_.size() + ready_.size() >= kMost) return Verdict::kTooMany;
    if (static_cast<std::int32_t>(advertisement.sequence - expected_) < 0) return Verdict::kCopy;
    if (advertisement.sequence != expected_) {
      return early_.emplace(advertisement.sequence, advertisement).second ? Verdict::kEarly : Verdict::kCopy;
    }
    ready_.push_back(advertisement);
    ++expected_;
    while (!early_.empty()) {
      const auto next = early_.find(expected_);
      if (next == early_.end()) break;
      ready_.push_back(next->second);
      early_.erase(next);
      ++expected_;
    }
    return Verdict::kTaken;
  }
  /// Removes the oldest with this tag; nothing where there is none.
  std::optional<handshake::Advertisement> take(std::uint32_t tag) {
    std::size_t i = 0;
    while (i < ready_.size() && ready_[i].tag != tag) ++i;
    if (i == ready_.size()) return std::nullopt;
    const handshake::Advertisement out = ready_[i];
    ready_.erase(i);
    return out;
  }

  [[nodiscard]] bool empty() const { return ready_.empty(); }
  [[nodiscard]] std::size_t size() const { return ready_.size(); }
  [[nodiscard]] std::size_t early() const { return early_.size(); }
  /// Of the oldest; there is one.
  [[nodiscard]] std::uint32_t oldest_tag() const { return ready_[0].tag; }
  /// Receives that were taken, modulo 2^32.
  [[nodiscard]] std::uint32_t taken() const { return expected_ - static_cast<std::uint32_t>(ready_.size()); }
  /// Frees the memory of an empty queue.
  void release() { ready_.release(); }

 private:
  std::uint32_t expected_ = 0;                               ///< sequence number of the next in order
  std::map<std::uint32_t, handshake::Advertisement> early_;  ///< by sequence number
  Ring<handshake::Advertisement> ready_;
};

}  // namespace paralet
