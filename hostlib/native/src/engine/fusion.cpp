// SPDX-License-Identifier: Apache-2.0
#include "engine/fusion.hpp"

namespace paralet {

const handshake::Numbered& FrameNumbers::add(const handshake::Frame& frame) {
  const std::vector<std::byte> bytes = handshake::encode(frame);
  owes_ = false;
  return kept_.emplace_back(
      handshake::Numbered{.number = next_++, .acknowledged = taken_, .body = {bytes.begin() + 4, bytes.end()}});
}

handshake::Numbered FrameNumbers::acknowledgement() {
  owes_ = false;
  return {.number = next_, .acknowledged = taken_, .body = {}};
}

FrameNumbers::Verdict FrameNumbers::take(const handshake::Numbered& frame) {
  // A frame that was overtaken on another channel acknowledges less than is known.
  const auto fresh = static_cast<std::int32_t>(frame.acknowledged - (next_ - static_cast<std::uint32_t>(kept_.size())));
  if (fresh > static_cast<std::int64_t>(kept_.size())) return Verdict::kWrong;
  if (fresh > 0) kept_.erase(kept_.begin(), kept_.begin() + fresh);
  if (frame.body.empty()) return Verdict::kOld;
  const auto ahead = static_cast<std::int32_t>(frame.number - taken_);
  if (ahead > 0) return Verdict::kWrong;
  owes_ = true;  // a copy too: the acknowledgement of the first may be lost with its channel
  if (ahead < 0) return Verdict::kOld;
  ++taken_;
  return Verdict::kNew;
}

unsigned Fusion::other(unsigned member) const {
  const auto count = static_cast<unsigned>(members.size());
  for (unsigned i = 1; i < count; ++i) {
    if (const unsigned next = (member + i) % count; members[next].up) return next;
  }
  return member;
}

}  // namespace paralet
