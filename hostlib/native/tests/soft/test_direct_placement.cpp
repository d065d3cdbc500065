// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "bytes.hpp"
#include "soft/direct_placement.hpp"

namespace paralet {
namespace {

using test::Bytes;

/// What the kernel does with a datagram.
void scatter(std::span<const std::byte> datagram, std::span<const iovec> pieces) {
  for (const iovec& piece : pieces) {
    if (datagram.empty()) return;
    const std::size_t bytes = std::min(piece.iov_len, datagram.size());
    std::memcpy(piece.iov_base, datagram.data(), bytes);
    datagram = datagram.subspan(bytes);
  }
  CHECK(datagram.empty());
}

TEST_CASE("payloads come to their place, frames and the rest beside") {
  for (const std::size_t payload : {256, 1024, 4096}) {
    for (const std::size_t room : {1, 2, 14}) {
      for (const std::size_t packets : {0, 1, 2, 13, 15}) {
        for (const std::size_t rest : {0, 1, 11, 12, 13, 100}) {
          CAPTURE(payload);
          CAPTURE(room);
          CAPTURE(packets);
          CAPTURE(rest);
          const std::size_t size = payload + Landing::kFrameBytes;
          const Bytes datagram = test::random_fill(payload + packets + rest, packets * size + rest);
          Bytes target(room * payload + payload / 2, std::byte{0x5A});
          Landing landing;
          scatter(datagram, landing.prepare(target, payload));
          REQUIRE(landing.packets() == room);
          REQUIRE(landing.packet_bytes() == size);
          const std::size_t landed = std::min(room, packets);
          for (std::size_t i = 0; i < landed; ++i) {
            const auto packet = std::span(datagram).subspan(i * size, size);
            CHECK(std::ranges::equal(landing.payload(i), packet.subspan(wire::kBthBytes, payload)));
            CHECK(landing.payload(i).data() == target.data() + i * payload);
            CHECK(std::ranges::equal(landing.frame(i).first(wire::kBthBytes), packet.first(wire::kBthBytes)));
            CHECK(std::ranges::equal(landing.frame(i).last(wire::kIcrcBytes), packet.last(wire::kIcrcBytes)));
          }
          const auto beyond = std::span(target).subspan(room * payload);
          CHECK(std::ranges::all_of(beyond, [](std::byte b) { return b == std::byte{0x5A}; }));
          for (std::size_t first = landed + 1; first-- > 0;) {
            scatter(datagram, landing.prepare(target, payload));
            CHECK(
                std::ranges::equal(landing.gather(first, datagram.size()), std::span(datagram).subspan(first * size)));
          }
        }
      }
    }
  }
}

TEST_CASE("the largest datagrams fit") {
  for (const std::size_t payload : {256, 1008, 4096}) {
    const std::size_t size = payload + Landing::kFrameBytes;
    for (const std::size_t bytes : {std::size_t{65507}, wire::kMaxDatagramBytes}) {
      const Bytes datagram = test::random_fill(payload, bytes);
      Bytes target(100 * payload);
      Landing landing;
      scatter(datagram, landing.prepare(target, payload));
      CHECK(landing.packets() == std::min<std::size_t>(Landing::kMaxPackets, wire::kMaxDatagramBytes / size));
      CHECK(std::ranges::equal(landing.gather(0, bytes), datagram));
    }
  }
}

}  // namespace
}  // namespace paralet
