// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
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
    if (early() + ready_.size() >= kMost) return Verdict::kTooMany;
    if (static_cast<std::int32_t>(advertisement.sequence - expected_) < 0) return Verdict::kCopy;
    if (advertisement.sequence != expected_) {
      return rare().early.emplace(advertisement.sequence, advertisement).second ? Verdict::kEarly : Verdict::kCopy;
    }
    accept(advertisement);
    while (early() > 0) {
      const auto next = rare_->early.find(expected_);
      if (next == rare_->early.end()) break;
      accept(next->second);
      rare_->early.erase(next);
    }
    return Verdict::kTaken;
  }
  /// An eager message goes to a receive that has not been advertised yet. Not while they are `full_ahead`: too many
  /// wait to learn whether theirs has been since.
  void send_ahead(std::uint32_t number, std::uint32_t tag) { rare().ahead.push_back({.number = number, .tag = tag}); }
  [[nodiscard]] bool full_ahead() const { return rare_ && rare_->ahead.size() >= kMostAhead; }
  /// The peer has taken the eager messages before `number`, after it had advertised this many receives.
  void taken_ahead(std::uint32_t number, std::uint32_t advertised) {
    if (!rare_) return;
    rare_->taken_ahead = {number, advertised};
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
  [[nodiscard]] std::size_t early() const { return rare_ ? rare_->early.size() : 0; }
  /// Of the oldest; there is one.
  [[nodiscard]] std::uint32_t oldest_tag() const { return ready_[0].tag; }
  /// The sequence number of the next advertisement in order.
  [[nodiscard]] std::uint32_t expected() const { return expected_; }
  /// Receives that were taken, modulo 2^32.
  [[nodiscard]] std::uint32_t taken() const { return expected_ - static_cast<std::uint32_t>(ready_.size()); }
  /// Frees the memory of empty queues.
  void release() {
    ready_.release();
    if (rare_ && rare_->early.empty() && rare_->ahead.empty()) rare_.reset();
  }

 private:
  struct Ahead {
    std::uint32_t number = 0;
    std::uint32_t tag = 0;
  };
  /// What connections have that carry short messages, or whose packets come out of order. Most are idle.
  struct Rare {
    std::map<std::uint32_t, handshake::Advertisement> early;  ///< by sequence number
    Ring<Ahead> ahead;                                        ///< eager messages whose receive may still be advertised
    std::pair<std::uint32_t, std::uint32_t> taken_ahead;      ///< the arguments of the last call
  };
  Rare& rare() {
    if (!rare_) rare_ = std::make_unique<Rare>();
    return *rare_;
  }
  static bool before(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b) < 0; }

  /// The next in order. Eager messages that the peer had taken when it advertised the receive have met another one. Of
  /// the others the oldest with its tag meets it.
  void accept(const handshake::Advertisement& advertisement) {
    ++expected_;
    if (!rare_) {
      ready_.push_back(advertisement);
      return;
    }
    Ring<Ahead>& ahead = rare_->ahead;
    while (!ahead.empty() && before(ahead.front().number, advertisement.eager)) ahead.pop_front();
    std::size_t i = 0;
    while (i < ahead.size() && ahead[i].tag != advertisement.tag) ++i;
    if (i < ahead.size()) {
      ahead.erase(i);
    } else {
      ready_.push_back(advertisement);
    }
    forget_ahead();
  }
  /// There is a `rare_`.
  void forget_ahead() {
    const auto [number, advertised] = rare_->taken_ahead;
    if (before(expected_, advertised)) return;  // an advertisement of before is still on its way
    while (!rare_->ahead.empty() && before(rare_->ahead.front().number, number)) rare_->ahead.pop_front();
  }

  std::uint32_t expected_ = 0;  ///< sequence number of the next in order
  Ring<handshake::Advertisement> ready_;
  std::unique_ptr<Rare> rare_;
};

}  // namespace paralet
