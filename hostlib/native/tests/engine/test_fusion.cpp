// SPDX-License-Identifier: Apache-2.0
// The numbers of control frames between fused devices, and the choice of a path.
#include <doctest/doctest.h>

#include "engine/fusion.hpp"

namespace paralet {
namespace {

using Verdict = FrameNumbers::Verdict;

handshake::Frame frame(std::uint32_t connection) { return handshake::Close{connection}; }

TEST_CASE("a frame counts once, on whichever channel it comes first") {
  FrameNumbers sender;
  FrameNumbers receiver;
  const handshake::Numbered one = sender.add(frame(1));
  const handshake::Numbered two = sender.add(frame(2));
  CHECK_FALSE(receiver.owes_acknowledgement());
  CHECK(receiver.take(one) == Verdict::kNew);
  CHECK(receiver.owes_acknowledgement());
  CHECK(receiver.take(one) == Verdict::kOld);
  CHECK(receiver.take(two) == Verdict::kNew);
  CHECK(receiver.take(one) == Verdict::kOld);
  CHECK(receiver.take(two) == Verdict::kOld);
}

TEST_CASE("frames are kept until they are acknowledged, by a frame or without one") {
  FrameNumbers a;
  FrameNumbers b;
  const handshake::Numbered one = a.add(frame(1));
  const handshake::Numbered two = a.add(frame(2));
  REQUIRE(b.take(one) == Verdict::kNew);
  const handshake::Numbered answer = b.add(frame(9));
  CHECK_FALSE(b.owes_acknowledgement());
  CHECK(a.take(answer) == Verdict::kNew);
  REQUIRE(a.unacknowledged().size() == 1);
  CHECK(a.unacknowledged().front().number == two.number);
  REQUIRE(b.take(two) == Verdict::kNew);
  CHECK(a.take(b.acknowledgement()) == Verdict::kOld);
  CHECK(a.unacknowledged().empty());
  CHECK(a.take(answer) == Verdict::kOld);  // overtaken: it acknowledges less than is known
}

TEST_CASE("a gap and an acknowledgement of what was never sent are wrong") {
  FrameNumbers sender;
  FrameNumbers receiver;
  sender.add(frame(1));
  const handshake::Numbered second = sender.add(frame(2));
  CHECK(receiver.take(second) == Verdict::kWrong);
  CHECK(receiver.take({.number = 0, .acknowledged = 1, .body = {}}) == Verdict::kWrong);
  CHECK(receiver.take({.number = 0, .acknowledged = 0x7FFFFFFF, .body = {}}) == Verdict::kWrong);
  CHECK(sender.unacknowledged().size() == 2);
}

TEST_CASE("lanes go to the next member that is up") {
  Fusion fusion;
  fusion.members.resize(4);
  CHECK(fusion.other(2) == 2);
  fusion.members[2].up = true;
  CHECK(fusion.other(2) == 2);
  CHECK(fusion.other(3) == 2);
  fusion.members[0].up = true;
  CHECK(fusion.other(2) == 0);
  CHECK(fusion.other(1) == 2);
}

}  // namespace
}  // namespace paralet
