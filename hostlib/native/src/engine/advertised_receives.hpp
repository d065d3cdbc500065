// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "base/ring.hpp"
#include "engine/send_payloads.hpp"

namespace paralet {

/// The peer's receives on one connection that no send has been matched with, in the peer's order. Advertisements may
/// arrive out of order, and twice. A message that was sent eagerly without an advertisement meets a receive at the
/// peer, which may have been advertised in the meantime: that advertisement is dropped.
class AdvertisedReceives {
 public:
  static constexpr std::size_t kMost = 65536;  ///< early ones included
  static constexpr std::size_t kMostAhead = 256;
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
    accept(advertisement);
    while (!early_.empty()) {
      const auto next = early_.find(expected_);
      if (next == early_.end()) break;
      accept(next->second);
      early_.erase(next);
    }
    return Verdict::kTaken;
  }
  /// An eager message goes to a receive that has not been advertised yet. Not while they are `full_ahead`: too many
  /// wait to learn whether theirs has been since.
  void send_ahead(std::uint32_t number, std::uint32_t tag) { ahead_.push_back({.number = number, .tag = tag}); }
  [[nodiscard]] bool full_ahead() const { return ahead_.size() >= kMostAhead; }
  /// The peer has taken the eager messages before `number`, after it had advertised this many receives.
  void taken_ahead(std::uint32_t number, std::uint32_t advertised) {
    taken_ahead_ = {number, advertised};
    forget_ahead();
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
  /// The sequence number of the next advertisement in order.
  [[nodiscard]] std::uint32_t expected() const { return expected_; }
  /// Receives that were taken, modulo 2^32.
  [[nodiscard]] std::uint32_t taken() const { return expected_ - static_cast<std::uint32_t>(ready_.size()); }
  /// Frees the memory of an empty queue.
  void release() {
    ready_.release();
    ahead_.release();
  }

 private:
  struct Ahead {
    std::uint32_t number = 0;
    std::uint32_t tag = 0;
  };
  static bool before(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b) < 0; }

  /// The next in order. Eager messages that the peer had taken when it advertised the receive have met another one. Of
  /// the others the oldest with its tag meets it.
  void accept(const handshake::Advertisement& advertisement) {
    ++expected_;
    while (!ahead_.empty() && before(ahead_.front().number, advertisement.eager)) ahead_.pop_front();
    std::size_t i = 0;
    while (i < ahead_.size() && ahead_[i].tag != advertisement.tag) ++i;
    if (i < ahead_.size()) {
      ahead_.erase(i);
    } else {
      ready_.push_back(advertisement);
    }
    forget_ahead();
  }
  void forget_ahead() {
    if (before(expected_, taken_ahead_.second)) return;  // an advertisement of before is still on its way
    while (!ahead_.empty() && before(ahead_.front().number, taken_ahead_.first)) ahead_.pop_front();
  }

  std::uint32_t expected_ = 0;                               ///< sequence number of the next in order
  std::map<std::uint32_t, handshake::Advertisement> early_;  ///< by sequence number
  Ring<handshake::Advertisement> ready_;
  Ring<Ahead> ahead_;                                    ///< eager messages whose receive may still be advertised
  std::pair<std::uint32_t, std::uint32_t> taken_ahead_;  ///< the arguments of the last call
};

}  // namespace paralet
