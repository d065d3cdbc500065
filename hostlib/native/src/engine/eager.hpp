// SPDX-License-Identifier: Apache-2.0
// Short messages that go without waiting for a receive advertisement, where recent ones of the connection were short
// too (docs/protocol.md, section 3). The state of one connection, on both sides. No sockets.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/ring.hpp"
#include "engine/send_payloads.hpp"

namespace paralet {

inline constexpr std::size_t kMostEagerBytes = std::size_t{16} * 1024;
/// Eager messages that the receiver keeps for receives that its application has not posted yet.
inline constexpr std::uint32_t kEagerCredits = 32;

/// The sending side: when a message goes eagerly, and when the peer is asked to advertise its receives again.
class EagerSends {
 public:
  /// Messages in a row that must be short before one goes eagerly: after one, the next long message waits for a round
  /// trip.
  static constexpr unsigned kShortRun = 8;

  /// The application sends a message. `most`: the bytes of a short one.
  void note(std::uint64_t bytes, std::uint64_t most) { run_ = bytes <= most ? std::min(run_ + 1, kShortRun + 1) : 0; }
  /// Whether the message that `note` was told of last may go eagerly.
  [[nodiscard]] bool allowed() const { return in_run() && has_credit(); }
  /// Whether only credits are missing.
  [[nodiscard]] bool lacks_credit() const { return in_run() && !has_credit(); }
  /// The number of the next eager message, which goes. The peer then holds its advertisements back.
  std::uint32_t next() {
    asked_ = false;
    return sent_++;
  }
  /// A send waits for an advertisement: the number of the ask that has to go, nothing where the peer advertises anyway.
  std::optional<std::uint32_t> ask() { return std::exchange(asked_, true) ? std::nullopt : std::optional(sent_++); }
  /// False: the peer cannot have done that.
  bool credit(const handshake::EagerCredit& credit) {
    if (static_cast<std::int32_t>(credit.done - done_) < 0) return true;  // an older one, or a copy
    if (std::max(credit.done - done_, credit.taken - done_) > sent_ - done_) return false;
    done_ = credit.done;
    return true;
  }
  [[nodiscard]] std::uint32_t sent() const { return sent_; }

 private:
  [[nodiscard]] bool in_run() const { return run_ > kShortRun; }
  [[nodiscard]] bool has_credit() const { return sent_ - done_ < kEagerCredits; }

  std::uint32_t sent_ = 0;  ///< eager messages and asks
  std::uint32_t done_ = 0;  ///< of these, as the peer has said
  unsigned run_ = 0;        ///< short messages in a row
  bool asked_ = true;       ///< nothing went eagerly since the last ask: the peer advertises
};

/// The receiving side: puts eager messages and asks in order, and keeps messages that no receive has met yet.
class EagerArrivals {
 public:
  struct Message {
    bool ask = false;
    std::uint32_t advertised = 0;
    std::uint32_t tag = 0;
    unsigned lane = 0;
    std::vector<std::byte> bytes;
  };
  enum class Verdict : std::uint8_t {
    kNext,     ///< in order: it is taken now
    kEarly,    ///< `keep_early` keeps it
    kCopy,     ///< of one that came before
    kTooMany,  ///< the peer has sent more than it had credits for
  };

  Verdict arrived(std::uint32_t number) {
    if (number - granted_ > kEagerCredits) {
      return static_cast<std::int32_t>(number - granted_) < 0 ? Verdict::kCopy : Verdict::kTooMany;
    }
    const bool early = stored_ && stored_->early.contains(number);
    if (static_cast<std::int32_t>(number - taken_) < 0 || early) return Verdict::kCopy;
    if (number != taken_) return Verdict::kEarly;
    ++taken_;
    return Verdict::kNext;
  }
  void keep_early(std::uint32_t number, Message message) { stored().early.emplace(number, std::move(message)); }
  /// The next in order, if it came early. It is taken.
  std::optional<Message> next_early() {
    if (!stored_ || stored_->early.empty()) return std::nullopt;
    const auto found = stored_->early.find(taken_);
    if (found == stored_->early.end()) return std::nullopt;
    Message out = std::move(found->second);
    stored_->early.erase(found);
    ++taken_;
    return out;
  }

  /// A message in order has met no receive: it is kept.
  void keep(Message message) { stored().kept.push_back(std::move(message)); }
  /// Removes the oldest kept message with this tag.
  std::optional<Message> kept(std::uint32_t tag) {
    if (!keeps_any()) return std::nullopt;
    Ring<Message>& kept = stored_->kept;
    for (std::size_t i = 0; i < kept.size(); ++i) {
      if (kept[i].tag != tag) continue;
      Message out = std::move(kept[i]);
      kept.erase(i);
      return out;
    }
    return std::nullopt;
  }
  [[nodiscard]] bool keeps_any() const { return stored_ && !stored_->kept.empty(); }
  /// Memory for the bytes of a message that is to be kept.
  std::vector<std::byte> copy_of(std::span<const std::byte> bytes) {
    std::vector<std::byte> out = std::exchange(stored().spare, {});
    out.assign(bytes.begin(), bytes.end());
    return out;
  }
  void reuse(std::vector<std::byte> bytes) { stored().spare = std::move(bytes); }

  /// A message has met its receive, or an ask has been answered. True when the peer should be told.
  bool done() { return ++done_ - granted_ >= kEagerCredits / 2; }
  /// The peer may wait for a credit, as it has used all that it was given.
  [[nodiscard]] bool used_up() const { return taken_ - granted_ >= kEagerCredits; }
  /// There is a credit that the peer was not told of.
  [[nodiscard]] bool owes() const { return done_ != granted_; }
  /// Eager messages come: receives need no advertisement. An ask ends that.
  void hold(bool holds) { holds_ = holds; }
  [[nodiscard]] bool holds() const { return holds_; }
  [[nodiscard]] std::uint32_t taken() const { return taken_; }
  /// What the peer is told now.
  handshake::EagerCredit grant(std::uint32_t connection, std::uint32_t advertised) {
    granted_ = done_;
    return {.connection = connection, .taken = taken_, .done = done_, .advertised = advertised};
  }

 private:
  struct Stored {
    std::map<std::uint32_t, Message> early;  ///< by number
    Ring<Message> kept;
    std::vector<std::byte> spare;
  };
  Stored& stored() {
    if (!stored_) stored_ = std::make_unique<Stored>();
    return *stored_;
  }

  std::uint32_t taken_ = 0;    ///< in order
  std::uint32_t done_ = 0;     ///< of these
  std::uint32_t granted_ = 0;  ///< `done_` when the peer was last told
  bool holds_ = false;
  std::unique_ptr<Stored> stored_;  ///< behind a pointer, as most connections are idle or never keep a message
};

}  // namespace paralet
