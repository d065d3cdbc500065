// SPDX-License-Identifier: Apache-2.0
// Fuzzes input from TCP and from SENDs: listener handles, frames, a channel that gets its stream in pieces,
// advertisements, eager messages, asks and credits. Parsed input must serialize to the same bytes (except padding),
// which shows that the parser reads only what is there.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "engine/channel.hpp"
#include "engine/handshake.hpp"
#include "engine/send_payloads.hpp"
#include "script.hpp"
#include "wire/wire.hpp"

namespace paralet::fuzz {
namespace {

using handshake::Frame;
using Bytes = std::vector<std::byte>;

/// A copy of exactly its size, so that AddressSanitizer detects reads beyond it.
Bytes exact(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

void try_handle(std::span<const std::byte> bytes) {
  const auto handle = handshake::decode_handle(exact(bytes));
  if (!handle) return;
  const auto again = handshake::encode(*handle);
  const std::ptrdiff_t meant = handle->address.is_ipv4() ? 48 : 64;  // then padding
  require(std::equal(again.begin(), again.begin() + meant, bytes.begin()));
}

void try_frame(std::span<const std::byte> body) {
  const auto frame = handshake::decode(exact(body));
  if (!frame) return;
  const Bytes again = handshake::encode(*frame);
  require(again.size() == body.size() + 4 && wire::get_u32(again.data()) == body.size());
  require(std::equal(body.begin(), body.end(), again.begin() + 4));
}

void try_advertisement(std::span<const std::byte> bytes) {
  Bytes copy = exact(bytes);
  const auto advertisement = handshake::decode_advertisement(copy);
  if (!advertisement) return;
  const auto again = handshake::encode(*advertisement, copy.size() == handshake::kFusedAdvertisementBytes);
  require(std::equal(copy.begin(), copy.end(), again.begin()));
}

template <typename Item>
void try_item(std::span<const std::byte> bytes, const std::optional<Item>& item) {
  if (!item) return;
  const auto again = handshake::encode(*item);
  require(bytes.size() >= again.size() && std::equal(again.begin(), again.end(), bytes.begin()));
}

/// What a SEND may be, or have in it.
void try_items(std::span<const std::byte> bytes) {
  try_advertisement(bytes);
  const Bytes copy = exact(bytes);
  try_item(copy, handshake::decode_eager_message(copy));
  try_item(copy, handshake::decode_ask(copy));
  try_item(copy, handshake::decode_eager_credit(copy));
}

struct Stream {
  Bytes frames;  ///< every complete frame, unchanged
  bool malformed = false;
};

/// The messages that a channel should read from a stream.
Stream read_all(std::span<const std::byte> stream) {
  Stream out;
  while (stream.size() >= 4) {
    const std::size_t length = wire::get_u32(stream.data());
    out.malformed = length == 0 || length > handshake::kMaxFrameBytes;
    if (out.malformed || stream.size() - 4 < length) break;
    out.malformed = !handshake::decode(stream.subspan(4, length));
    if (out.malformed) break;
    out.frames.insert(out.frames.end(), stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(4 + length));
    stream = stream.subspan(4 + length);
  }
  return out;
}

void try_channel(Script script) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) != 0) return;
  const FileDescriptor far(ends[1]);
  Channel channel(FileDescriptor(ends[0]), kSecond);
  Bytes sent;
  Bytes got;
  const std::size_t piece = 1U + script.u8();
  while (!script.done() && !channel.closed()) {
    const auto bytes = script.bytes(piece);
    sent.insert(sent.end(), bytes.begin(), bytes.end());
    require(::send(far.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
    for (const Frame& frame : channel.on_readable()) {
      const Bytes again = handshake::encode(frame);
      got.insert(got.end(), again.begin(), again.end());
    }
  }
  const Stream wanted = read_all(sent);
  require(got == wanted.frames);
  require(channel.closed() == wanted.malformed);
}

}  // namespace
}  // namespace paralet::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  paralet::fuzz::Script script(data, size);
  switch (script.u8() % 4) {
    case 0:
      paralet::fuzz::try_handle(script.bytes(size));
      break;
    case 1:
      paralet::fuzz::try_items(script.bytes(size));
      break;
    case 2:
      paralet::fuzz::try_frame(script.bytes(size));
      break;
    default:
      paralet::fuzz::try_channel(script);
      break;
  }
  return 0;
}
