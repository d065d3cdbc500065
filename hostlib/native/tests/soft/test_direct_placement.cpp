// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "bytes.hpp"
#include "soft/direct_placement.hpp"

namespace paralet {
namespace {

using test::Bytes;

/// Scatters a datagram as the kernel does.
void scatter(std::span<const std::byte> datagram, std::span<const iovec> pieces) {
  for (const iovec& piece : pieces) {
    if (datagram.empty()) return;
    const std::size_t bytes = std::min(piece.iov_len, datagram.size());
    std::memcpy(piece.iov_base, datagram.data(), bytes);
    datagram = datagram.subspan(bytes);
  }
  CHECK(datagram.empty());
}

TEST_CASE("payloads go to their target, frames and the rest elsewhere") {
  for (const std::size_t payload : {256, 1024, 4096}) {
    for (const std::size_t room : {1, 2, 14}) {
      for (const std::size_t packets : {0, 1, 2, 13, 15}) {
        for (const std::size_t rest : {0, 1, 11, 12, 13, 100}) {
          CAPTURE(payload);
          CAPTURE(room);
          CAPTURE(packets);
          CAPTURE(rest);
          const std::size_t size = payload + DirectPlacement::kFrameBytes;
          const Bytes datagram = test::random_fill(payload + packets + rest, packets * size + rest);
          Bytes target(room * payload + payload / 2, std::byte{0x5A});
          DirectPlacement placement;
          scatter(datagram, placement.prepare(target, payload));
          REQUIRE(placement.packets() == room);
          REQUIRE(placement.packet_bytes() == size);
          const std::size_t placed = std::min(room, packets);
          for (std::size_t i = 0; i < placed; ++i) {
            const auto packet = std::span(datagram).subspan(i * size, size);
            CHECK(std::ranges::equal(placement.payload(i), packet.subspan(wire::kBthBytes, payload)));
            CHECK(placement.payload(i).data() == target.data() + i * payload);
            CHECK(std::ranges::equal(placement.frame(i).first(wire::kBthBytes), packet.first(wire::kBthBytes)));
            CHECK(std::ranges::equal(placement.frame(i).last(wire::kIcrcBytes), packet.last(wire::kIcrcBytes)));
          }
          const auto beyond = std::span(target).subspan(room * payload);
          CHECK(std::ranges::all_of(beyond, [](std::byte b) { return b == std::byte{0x5A}; }));
          for (std::size_t first = placed + 1; first-- > 0;) {
            scatter(datagram, placement.prepare(target, payload));
            CHECK(std::ranges::equal(placement.gather(first, datagram.size()),
                                     std::span(datagram).subspan(first * size)));
          }
        }
      }
    }
  }
}

TEST_CASE("the largest datagrams fit") {
  for (const std::size_t payload : {256, 1008, 4096}) {
    const std::size_t size = payload + DirectPlacement::kFrameBytes;
    for (const std::size_t bytes : {std::size_t{65507}, wire::kMaxDatagramBytes}) {
      const Bytes datagram = test::random_fill(payload, bytes);
      Bytes target(100 * payload);
      DirectPlacement placement;
      scatter(datagram, placement.prepare(target, payload));
      CHECK(placement.packets() == std::min<std::size_t>(DirectPlacement::kMaxPackets, wire::kMaxDatagramBytes / size));
      CHECK(std::ranges::equal(placement.gather(0, bytes), datagram));
    }
  }
}

}  // namespace
}  // namespace paralet
