// SPDX-License-Identifier: Apache-2.0
// Fuzzes what comes over the TCP connections of lanes: hellos, notices, and frames in pieces, while memory is given
// back and receive buffers run out. Only registered memory may be written, and the order of messages is that of the
// stream, however it is cut.
#include <algorithm>
#include <array>
#include <optional>
#include <type_traits>
#include <vector>

#include "guarded.hpp"
#include "script.hpp"
#include "tcp/frame_reader.hpp"
#include "tcp/frames.hpp"
#include "tcp/send_queue.hpp"

namespace paralet::fuzz {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::uint64_t kRegionBytes = 300;
constexpr std::uint32_t kBufferBytes = 60;
constexpr std::uint32_t kQpn = 5;

template <std::size_t kSize, typename Decode>
void try_format(Script script, Decode decode) {
  std::array<std::byte, kSize> bytes{};
  std::ranges::copy(script.bytes(kSize), bytes.begin());
  const auto value = decode(std::span<const std::byte, kSize>(bytes));
  if (!value) return;
  std::array<std::byte, kSize> again{};
  if constexpr (kSize == tcp::kFrameBytes && std::is_same_v<decltype(value), const std::optional<tcp::Frame>>) {
    tcp::encode(*value, again);
  } else {
    again = tcp::encode(*value);
  }
  require(again == bytes);
}

/// A reader whose memory is exactly what it may write.
struct Receiving {
  Guarded memory{kRegionBytes};
  MemoryTable table;
  std::uint32_t rkey = table.add(memory.open(0, kRegionBytes), kRegionBytes);
  Guarded places{std::size_t{4} * kBufferBytes};
  Ring<ReceiveBuffer> buffers;
  std::vector<Completion> completions;
  tcp::ReceiveContext context{table, buffers, completions};
  tcp::FrameReader reader{context, kQpn};

  void give(std::size_t i) {
    buffers.push_back({.data = places.open(i * kBufferBytes, kBufferBytes), .length = kBufferBytes, .cookie = i});
  }
};

/// A stream of frames, most of them valid, in pieces of any size.
void try_reader(Script script) {
  Receiving receiving;
  for (std::size_t i = 0; i < 1U + script.u8() % 4; ++i) receiving.give(i);
  Bytes stream;
  const unsigned frames = script.u8() % 16;
  for (unsigned i = 0; i < frames; ++i) {
    const std::uint8_t what = script.u8();
    tcp::Frame frame{.kind = static_cast<WorkKind>(what % 3),
                     .length = script.u8(),
                     .rkey = (what & 4) != 0 ? script.u32() : receiving.rkey,
                     .imm = script.u16(),
                     .address = (what & 8) != 0 ? script.u64() : script.u8()};
    std::array<std::byte, tcp::kFrameBytes> header{};
    tcp::encode(frame, header);
    if ((what & 0x70) == 0) header[script.u8() % header.size()] ^= static_cast<std::byte>(script.u8());
    stream.insert(stream.end(), header.begin(), header.end());
    stream.resize(stream.size() + frame.length, std::byte{what});
  }
  std::array<std::byte, 32> sink{};
  std::size_t at = 0;
  while (at < stream.size() && !receiving.reader.refused()) {
    const std::uint8_t how = script.u8();
    if (how == 1) receiving.table.retire(receiving.rkey);
    if (how == 2) {
      receiving.table.remove(receiving.rkey);
      receiving.memory.close(0, kRegionBytes);
    }
    const std::size_t part = std::min<std::size_t>(1U + how / 4, stream.size() - at);
    const std::span<std::byte> target = receiving.reader.target(sink);
    if ((how & 3) == 3 && !target.empty()) {
      const std::size_t direct = std::min(part, target.size());
      std::copy_n(stream.begin() + static_cast<std::ptrdiff_t>(at), direct, target.begin());
      receiving.reader.placed(direct);
      at += direct;
      continue;
    }
    const std::size_t taken = receiving.reader.take(Bytes(stream.begin() + static_cast<std::ptrdiff_t>(at),
                                                          stream.begin() + static_cast<std::ptrdiff_t>(at + part)));
    require(taken <= part && (taken == part || receiving.reader.refused() || receiving.reader.stalled()));
    at += taken;
    if (!receiving.reader.stalled()) continue;
    if (receiving.completions.empty()) return;  // a frame holds the only buffer
    receiving.give(receiving.completions.back().cookie);
  }
  require(receiving.reader.messages() == receiving.completions.size());
}

/// What the queue sends, however it is cut, and however often its connection ends, is what the reader gets.
void try_queue(Script script) {
  Receiving receiving;
  receiving.give(0);
  tcp::SendQueue queue;
  if (script.u8() % 2 == 0) queue.expect_answers();
  std::vector<Completion> sent;
  std::array<std::byte, 255> payload{};
  std::uint32_t posted = 0;
  tcp::Batch batch;
  std::uint64_t stream = 0;  // bytes that have arrived over the connection
  for (unsigned rounds = 0; rounds < 64; ++rounds) {
    const std::uint8_t what = script.u8();
    if (what % 2 == 0 && !script.done()) {
      const auto kind = static_cast<WorkKind>(script.u8() % 3);
      const std::uint32_t length = kind == WorkKind::kSend ? script.u8() % kBufferBytes : script.u8();
      queue.post({.kind = kind, .cookie = ++posted, .data = payload.data(), .length = length, .rkey = receiving.rkey});
    }
    queue.gather(batch, 1U + script.u8());
    std::size_t left = std::min<std::size_t>(batch.bytes, script.done() ? SIZE_MAX : script.u8());
    queue.handed_over(left);
    for (const iovec& piece : std::span(batch.pieces.data(), batch.used)) {
      const std::size_t part = std::min(left, piece.iov_len);
      const std::span<const std::byte> bytes(static_cast<const std::byte*>(piece.iov_base), part);
      for (std::size_t taken = receiving.reader.take(bytes); taken < part || receiving.reader.stalled();) {
        require(receiving.reader.stalled());
        receiving.give(0);
        taken += receiving.reader.take(bytes.subspan(taken));
      }
      left -= part;
      stream += part;
    }
    require(!receiving.reader.refused());
    if (what % 8 == 1) {
      queue.acknowledge(stream - std::min<std::uint64_t>(stream, script.u8()), kQpn, sent);
    } else if (what % 8 == 3) {
      receiving.reader.restart();
      stream = 0;
      require(queue.resume(receiving.reader.frames(), kQpn, sent));
    } else if (what % 8 == 5) {
      const std::uint64_t before = queue.first_frame();
      const std::uint64_t said = receiving.reader.take_ping() ? receiving.reader.frames() : script.u8();
      require(queue.answer(said, kQpn, sent) || queue.first_frame() == before);
    }
    require(queue.first_frame() <= receiving.reader.frames() && sent.size() == queue.first_frame());
    for (std::size_t i = 0; i < sent.size(); ++i) require(sent[i].cookie == i + 1);
  }
}

}  // namespace
}  // namespace paralet::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace paralet;        // NOLINT(google-build-using-namespace): one function
  using namespace paralet::fuzz;  // NOLINT(google-build-using-namespace)
  Script script(data, size);
  switch (script.u8() % 5) {
    case 0:
      try_format<tcp::kHelloBytes>(script, tcp::decode_hello);
      break;
    case 1:
      try_format<tcp::kNoticeBytes>(script, tcp::decode_notice);
      break;
    case 2:
      try_format<tcp::kFrameBytes>(script, tcp::decode_frame);
      break;
    case 3:
      try_reader(script);
      break;
    default:
      try_queue(script);
      break;
  }
  return 0;
}
