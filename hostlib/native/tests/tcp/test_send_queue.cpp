// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "bytes.hpp"
#include "tcp/send_queue.hpp"

namespace paralet::tcp {
namespace {

using test::Bytes;
using test::random_fill;

constexpr std::uint32_t kSendQpn = 7;

/// A queue with the payloads of its requests.
struct SendScene {
  SendQueue queue;
  std::vector<Completion> completions;
  std::vector<Bytes> payloads;

  void post(WorkKind kind, std::size_t bytes) {
    payloads.push_back(random_fill(payloads.size() + 1, bytes));
    queue.post({.kind = kind,
                .cookie = payloads.size(),
                .data = payloads.back().data(),
                .length = static_cast<std::uint32_t>(bytes),
                .remote_address = 1000 * payloads.size(),
                .rkey = 5,
                .imm = 9});
  }
  /// The next bytes of the stream, as one call would send them.
  [[nodiscard]] Bytes next(std::size_t most) const {
    Batch batch;
    queue.gather(batch, most);
    Bytes out;
    for (const iovec& piece : std::span(batch.pieces.data(), batch.used)) {
      const auto* from = static_cast<const std::byte*>(piece.iov_base);
      out.insert(out.end(), from, from + piece.iov_len);
    }
    CHECK(out.size() == batch.bytes);
    return out;
  }
  /// All bytes, sent `step` at a time.
  Bytes send_all(std::size_t step) {
    Bytes out;
    while (!queue.all_handed_over()) {
      const Bytes some = next(step + kFrameBytes);
      const std::size_t taken = std::min(step, some.size());
      REQUIRE(taken > 0);
      out.insert(out.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(taken));
      queue.handed_over(taken);
    }
    return out;
  }
  [[nodiscard]] std::vector<std::uint64_t> finished() const {
    std::vector<std::uint64_t> out;
    for (const Completion& completion : completions) out.push_back(completion.cookie);
    return out;
  }
};

using Cookies = std::vector<std::uint64_t>;

TEST_CASE("somebody waits for a WRITE, and for SENDs only where there are many") {
  SendScene scene;
  for (int i = 0; i < 16; ++i) scene.post(WorkKind::kSend, 10);
  CHECK_FALSE(scene.queue.awaited());
  scene.post(WorkKind::kWriteImm, 10);
  CHECK(scene.queue.awaited());
  const std::size_t bytes = scene.send_all(1000).size();
  scene.queue.acknowledge(bytes, kSendQpn, scene.completions);
  CHECK(scene.queue.empty());
  CHECK_FALSE(scene.queue.awaited());
  for (int i = 0; i < 17; ++i) scene.post(WorkKind::kSend, 10);
  CHECK(scene.queue.awaited());
  scene.post(WorkKind::kWriteImm, 10);
  CHECK(scene.queue.take_back(17, kSendQpn, scene.completions).size() == 18);
  CHECK_FALSE(scene.queue.awaited());
}

TEST_CASE("a ping waits for an answer that covers it, and so does what follows it") {
  SendScene scene;
  scene.queue.expect_answers();
  scene.post(WorkKind::kSend, 10);
  scene.post(WorkKind::kWrite, 0);
  scene.post(WorkKind::kWriteImm, 0);  // an empty message is no ping
  scene.post(WorkKind::kWrite, 0);
  const std::size_t bytes = scene.send_all(1000).size();
  const auto answer = [&](std::uint64_t frames) { return scene.queue.answer(frames, kSendQpn, scene.completions); };
  scene.queue.acknowledge(bytes - kFrameBytes, kSendQpn, scene.completions);  // all but the last
  CHECK(scene.finished() == Cookies{1});
  CHECK(scene.queue.awaits_answer());
  CHECK_FALSE(answer(1));
  CHECK_FALSE(answer(5));
  CHECK(answer(2));
  CHECK(scene.finished() == Cookies{1, 2, 3});
  CHECK_FALSE(scene.queue.awaits_answer());  // the second ping is not acknowledged yet
  CHECK_FALSE(answer(3));
  CHECK(answer(4));  // nor does an answer make it so
  CHECK(scene.finished() == Cookies{1, 2, 3});
  CHECK_FALSE(answer(4));
  scene.queue.acknowledge(bytes, kSendQpn, scene.completions);
  CHECK(scene.finished() == Cookies{1, 2, 3, 4});
}

TEST_CASE("a welcome answers the pings before it, and the others are sent again") {
  SendScene scene;
  scene.queue.expect_answers();
  for (int i = 0; i < 3; ++i) scene.post(WorkKind::kWrite, 0);
  scene.queue.acknowledge(scene.send_all(1000).size(), kSendQpn, scene.completions);
  CHECK(scene.finished().empty());
  REQUIRE(scene.queue.resume(2, kSendQpn, scene.completions));
  CHECK(scene.finished() == Cookies{1, 2});
  CHECK_FALSE(scene.queue.answer(3, kSendQpn, scene.completions));  // the third has not left again
  CHECK(scene.send_all(1000).size() == kFrameBytes);
  scene.queue.acknowledge(kFrameBytes, kSendQpn, scene.completions);
  CHECK(scene.queue.answer(3, kSendQpn, scene.completions));
  CHECK(scene.finished() == Cookies{1, 2, 3});
}

TEST_CASE("the stream is the same however little the socket takes at a time") {
  const auto stream = [](std::size_t step) {
    SendScene scene;
    for (const std::size_t bytes : {0, 1, 256, 257, 5000, 8}) scene.post(WorkKind::kWriteImm, bytes);
    for (int i = 0; i < 70; ++i) scene.post(WorkKind::kSend, 40);
    return scene.send_all(step);
  };
  const Bytes whole = stream(1'000'000);
  CHECK(whole.size() == 76 * kFrameBytes + 5522 + 70 * 40);
  for (const std::size_t step : {1, 7, 23, 24, 25, 300, 4096}) CHECK(stream(step) == whole);
}

TEST_CASE("one call gathers many short requests and no more than it may") {
  SendScene scene;
  for (int i = 0; i < 100; ++i) scene.post(WorkKind::kSend, 40);
  CHECK(scene.next(1'000'000).size() == Batch::kFrames * (kFrameBytes + 40));
  scene.queue.handed_over(Batch::kFrames * (kFrameBytes + 40));
  SendScene large;
  large.post(WorkKind::kWriteImm, 100'000);
  CHECK(large.next(4096).size() == 4096);
}

TEST_CASE("a request is finished when its last byte is acknowledged") {
  SendScene scene;
  scene.post(WorkKind::kSend, 10);
  scene.post(WorkKind::kSend, 0);
  scene.send_all(1000);
  CHECK_FALSE(scene.queue.acknowledge(kFrameBytes + 9, kSendQpn, scene.completions));
  CHECK(scene.queue.acknowledge(kFrameBytes + 10, kSendQpn, scene.completions));
  CHECK(scene.finished() == Cookies{1});
  CHECK(scene.queue.acknowledge(2 * kFrameBytes + 10, kSendQpn, scene.completions));
  CHECK(scene.finished() == Cookies{1, 2});
  CHECK(scene.completions.front().byte_length == 10);
  CHECK(scene.completions.front().qpn == kSendQpn);
  CHECK(scene.queue.empty());
  CHECK(scene.queue.waiting_bytes() == 0);
}

TEST_CASE("acknowledged bytes of payload are counted without headers, and never fewer than before") {
  SendScene scene;
  for (int i = 0; i < 3; ++i) scene.post(WorkKind::kSend, 100);
  scene.send_all(1000);
  const auto count_at = [&scene](std::uint64_t stream_bytes) {
    scene.queue.acknowledge(stream_bytes, kSendQpn, scene.completions);
    return scene.queue.payload_bytes();
  };
  CHECK(count_at(kFrameBytes - 1) == 0);
  CHECK(count_at(kFrameBytes + 60) == 60);
  CHECK(count_at(kFrameBytes + 100) == 100);
  CHECK(count_at(2 * kFrameBytes + 130) == 130);
  REQUIRE(scene.queue.resume(1, kSendQpn, scene.completions));  // the second frame goes again, from its beginning
  CHECK(scene.queue.payload_bytes() == 130);
  scene.send_all(1000);
  CHECK(count_at(kFrameBytes + 100) == 230);
  CHECK(count_at(2 * kFrameBytes + 110) == 240);
  scene.queue.fail(Status::kFlushed, kSendQpn, scene.completions);
  CHECK(scene.queue.payload_bytes() == 240);
}

TEST_CASE("what the socket has not taken is not acknowledged") {
  SendScene scene;
  scene.post(WorkKind::kSend, 100);
  scene.queue.handed_over(50);
  CHECK(scene.queue.waiting_bytes() == kFrameBytes + 50);
  CHECK_FALSE(scene.queue.acknowledge(1000, kSendQpn, scene.completions));
}

TEST_CASE("a new connection begins with the first frame that has not arrived, and sends it from its beginning") {
  SendScene scene;
  for (int i = 0; i < 4; ++i) scene.post(WorkKind::kSend, 100);
  const Bytes first = scene.next(1'000'000);
  scene.queue.handed_over(2 * (kFrameBytes + 100) + 60);  // the third in part
  scene.queue.acknowledge(kFrameBytes + 100, kSendQpn, scene.completions);
  REQUIRE(scene.queue.resume(2, kSendQpn, scene.completions));
  CHECK(scene.finished() == Cookies{1, 2});
  CHECK(scene.queue.stream_bytes() == 0);
  CHECK(scene.queue.waiting_bytes() == 2 * (kFrameBytes + 100));
  const Bytes rest(first.begin() + 2 * (kFrameBytes + 100), first.end());
  CHECK(scene.next(1'000'000) == rest);
}

TEST_CASE("a peer cannot have lost what was acknowledged, nor have what was never sent") {
  SendScene scene;
  for (int i = 0; i < 3; ++i) scene.post(WorkKind::kSend, 100);
  scene.queue.handed_over(2 * (kFrameBytes + 100));
  scene.queue.acknowledge(kFrameBytes + 100, kSendQpn, scene.completions);
  CHECK_FALSE(scene.queue.resume(0, kSendQpn, scene.completions));
  CHECK_FALSE(scene.queue.resume(3, kSendQpn, scene.completions));
  CHECK(scene.finished() == Cookies{1});
  CHECK(scene.queue.resume(1, kSendQpn, scene.completions));
}

TEST_CASE("requests are taken back from the first message that did not arrive") {
  SendScene scene;
  scene.post(WorkKind::kWrite, 10);  // its end is the SEND behind it
  scene.post(WorkKind::kSend, 12);
  scene.post(WorkKind::kWrite, 10);
  scene.post(WorkKind::kSend, 12);
  scene.post(WorkKind::kWriteImm, 20);
  scene.send_all(1000);
  const auto back = scene.queue.take_back(1, kSendQpn, scene.completions);
  CHECK(scene.finished() == Cookies{1, 2});
  REQUIRE(back.size() == 3);
  CHECK(back[0].cookie == 3);
  CHECK(back[2].cookie == 5);
  CHECK(scene.queue.empty());
}

TEST_CASE("of failed requests the oldest has the reason") {
  SendScene scene;
  for (int i = 0; i < 3; ++i) scene.post(WorkKind::kSend, 100);
  scene.queue.fail(Status::kRetryExceeded, kSendQpn, scene.completions);
  REQUIRE(scene.completions.size() == 3);
  CHECK(scene.completions[0].status == Status::kRetryExceeded);
  CHECK(scene.completions[1].status == Status::kFlushed);
  CHECK(scene.queue.empty());
  CHECK(scene.queue.waiting_bytes() == 0);
}

}  // namespace
}  // namespace paralet::tcp
