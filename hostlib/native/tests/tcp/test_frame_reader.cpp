// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "bytes.hpp"
#include "tcp/frame_reader.hpp"

namespace paralet::tcp {
namespace {

using test::Bytes;
using test::random_fill;

constexpr std::uint32_t kReadQpn = 7;

/// A reader with registered memory and receive buffers.
struct ReadScene {
  MemoryTable memory;
  Ring<ReceiveBuffer> buffers;
  std::vector<Completion> completions;
  ReceiveContext context{memory, buffers, completions};
  FrameReader reader{context, kReadQpn};
  Bytes region = Bytes(1000);
  std::uint32_t rkey = memory.add(region.data(), region.size());
  std::array<std::array<std::byte, 64>, 4> places{};
  Bytes stream;

  void give_buffers(std::size_t count) {
    for (std::size_t i = count; i-- > 0;) {  // the last one is taken first
      buffers.push_back({.data = places[i].data(), .length = 64, .cookie = i});
    }
  }
  void add(const Frame& frame, const Bytes& payload) {
    std::array<std::byte, kFrameBytes> header{};
    encode(frame, header);
    stream.insert(stream.end(), header.begin(), header.end());
    stream.insert(stream.end(), payload.begin(), payload.end());
  }
  void add_write(std::uint64_t address, const Bytes& payload, std::optional<std::uint32_t> imm = std::nullopt) {
    add({.kind = imm ? WorkKind::kWriteImm : WorkKind::kWrite,
         .length = static_cast<std::uint32_t>(payload.size()),
         .rkey = rkey,
         .imm = imm.value_or(0),
         .address = address},
        payload);
  }
  void add_send(const Bytes& payload) {
    add({.kind = WorkKind::kSend, .length = static_cast<std::uint32_t>(payload.size())}, payload);
  }
  /// Takes the stream `step` bytes at a time.
  void read(std::size_t step) {
    for (std::size_t at = 0; at < stream.size() && !reader.refused();) {
      const std::size_t part = std::min(step, stream.size() - at);
      const std::size_t taken = reader.take(std::span(stream).subspan(at, part));
      if (taken < part) break;
      at += taken;
    }
  }
};

TEST_CASE("payloads and messages arrive whatever the pieces of the stream") {
  const Bytes one = random_fill(1, 300);
  const Bytes two = random_fill(2, 64);
  const Bytes three = random_fill(3, 1);
  for (const std::size_t step : {1, 2, 23, 24, 25, 100, 10'000}) {
    CAPTURE(step);
    ReadScene scene;
    scene.give_buffers(4);
    scene.add_write(100, one);
    scene.add_send(two);
    scene.add_write(999, three, 0x10002);
    scene.add_write(0, {});  // a ping
    scene.add_send({});
    scene.read(step);
    CHECK_FALSE(scene.reader.refused());
    CHECK(scene.reader.frames() == 5);
    CHECK(scene.reader.messages() == 3);
    CHECK(scene.reader.payload_bytes() == 365);
    CHECK(std::equal(one.begin(), one.end(), scene.region.begin() + 100));
    CHECK(std::equal(two.begin(), two.end(), scene.places[0].begin()));
    CHECK(scene.region[999] == three[0]);
    REQUIRE(scene.completions.size() == 3);
    CHECK(scene.completions[0].kind == Completion::Kind::kReceivedSend);
    CHECK(scene.completions[0].byte_length == 64);
    CHECK(scene.completions[1].kind == Completion::Kind::kReceivedWriteImm);
    CHECK(scene.completions[1].imm == 0x10002);
    CHECK(scene.completions[1].byte_length == 1);
    CHECK(scene.completions[1].cookie == 1);
    CHECK(scene.buffers.size() == 1);
  }
}

TEST_CASE("the rest of a payload is received where it belongs") {
  ReadScene scene;
  scene.add_write(10, random_fill(1, 500));
  REQUIRE(scene.reader.take(std::span(scene.stream).first(kFrameBytes + 100)) == kFrameBytes + 100);
  const std::span<std::byte> target = scene.reader.target({});
  CHECK(target.data() == scene.region.data() + 110);
  CHECK(target.size() == 400);
  scene.reader.placed(150);
  CHECK(scene.reader.target({}).data() == scene.region.data() + 260);
  scene.reader.placed(250);
  CHECK(scene.reader.frames() == 1);
  CHECK(scene.reader.target({}).empty());
}

TEST_CASE("a wrong key, range, length or kind is refused, and nothing is written") {
  const auto refusal = [](const Frame& frame) {
    ReadScene scene;
    scene.give_buffers(1);
    Frame one = frame;
    if (one.rkey == 1) one.rkey = scene.rkey;
    scene.add(one, Bytes(10, std::byte{1}));
    scene.read(10'000);
    CHECK(std::ranges::all_of(scene.region, [](std::byte b) { return b == std::byte{0}; }));
    CHECK(scene.completions.empty());
    return scene.reader.refused();
  };
  constexpr auto kWrite = WorkKind::kWrite;
  CHECK(refusal({.kind = kWrite, .length = 10, .rkey = 0}) == Status::kRemoteAccess);
  CHECK(refusal({.kind = kWrite, .length = 10, .rkey = 1, .address = 991}) == Status::kRemoteAccess);
  CHECK(refusal({.kind = kWrite, .length = 1001, .rkey = 1}) == Status::kRemoteAccess);
  CHECK(refusal({.kind = kWrite, .length = 10, .rkey = 1, .address = UINT64_MAX}) == Status::kRemoteAccess);
  CHECK(refusal({.kind = WorkKind::kWriteImm, .length = UINT32_MAX, .rkey = 1, .imm = 1}) == Status::kRemoteAccess);
  CHECK(refusal({.kind = WorkKind::kSend, .length = 65}) == Status::kRemoteInvalid);
  CHECK(refusal({.kind = WorkKind::kSend, .length = UINT32_MAX}) == Status::kRemoteInvalid);
}

TEST_CASE("memory that is given back while a payload arrives is not written any more") {
  Bytes sink(64);
  SUBCASE("retired: the data is dropped and the message arrives") {
    ReadScene scene;
    scene.give_buffers(1);
    scene.add_write(0, Bytes(200, std::byte{1}), 5);
    scene.reader.take(std::span(scene.stream).first(kFrameBytes + 50));
    scene.memory.retire(scene.rkey);
    CHECK(scene.reader.target(sink).data() == sink.data());
    CHECK(scene.reader.target(sink).size() == 64);
    scene.reader.take(std::span(scene.stream).subspan(kFrameBytes + 50));
    CHECK(scene.region[50] == std::byte{0});
    CHECK(scene.completions.size() == 1);
  }
  SUBCASE("deregistered: the frame is refused") {
    ReadScene scene;
    scene.add_write(0, Bytes(200, std::byte{1}));
    scene.reader.take(std::span(scene.stream).first(kFrameBytes + 50));
    scene.memory.remove(scene.rkey);
    CHECK(scene.reader.target(sink).empty());
    CHECK(scene.reader.refused() == Status::kRemoteAccess);
    CHECK(scene.reader.take(std::span(scene.stream).subspan(kFrameBytes + 50)) == 0);
  }
}

TEST_CASE("a message waits for a receive buffer, and nothing behind it overtakes it") {
  for (const bool send : {true, false}) {
    CAPTURE(send);
    ReadScene scene;
    if (send) {
      scene.add_send(random_fill(1, 20));
    } else {
      scene.add_write(0, random_fill(1, 20), 5);
    }
    scene.add_write(500, random_fill(2, 20));
    const std::size_t taken = scene.reader.take(scene.stream);
    CHECK(scene.reader.stalled());
    CHECK(scene.reader.frames() == 0);
    CHECK(taken == (send ? kFrameBytes : kFrameBytes + 20));
    CHECK(scene.reader.take({}) == 0);
    CHECK(scene.reader.stalled());
    scene.give_buffers(1);
    scene.reader.take(std::span(scene.stream).subspan(taken));
    CHECK_FALSE(scene.reader.stalled());
    CHECK(scene.reader.frames() == 2);
    CHECK(scene.completions.size() == 1);
  }
}

TEST_CASE("after a restart a frame that came in part comes again, and its buffer is not lost") {
  ReadScene scene;
  scene.give_buffers(1);
  scene.add_send(random_fill(1, 60));
  for (const std::size_t part : {10, 24, 50}) {
    scene.reader.take(std::span(scene.stream).first(part));
    scene.reader.restart();
    CHECK(scene.buffers.size() == 1);
  }
  scene.reader.take(scene.stream);
  CHECK(scene.reader.messages() == 1);
  CHECK(scene.completions.size() == 1);
}

}  // namespace
}  // namespace paralet::tcp
