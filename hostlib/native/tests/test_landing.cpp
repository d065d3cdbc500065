// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "bytes.hpp"
#include "landing.hpp"

namespace paralet {
namespace {

using test::Bytes;

/// What the kernel does with a datagram.
void scatter(std::span<const std::byte> datagram, std::span<const iovec> pieces) {
  for (const iovec& piece : pieces) {
    std::memcpy(piece.iov_base, datagram.data(), piece.iov_len);
    datagram = datagram.subspan(piece.iov_len);
  }
  CHECK(datagram.empty());
}

TEST_CASE("payloads come to their place, frames and the rest beside") {
  for (const std::size_t payload : {256, 1024, 4096}) {
    for (const std::size_t packets : {1, 2, 14}) {
      for (const std::size_t rest : {0, 1, 100}) {
        CAPTURE(payload);
        CAPTURE(packets);
        CAPTURE(rest);
        const std::size_t size = payload + Landing::kFrameBytes;
        const Bytes datagram = test::random_fill(payload + packets + rest, packets * size + rest);
        Bytes target(packets * payload);
        Landing landing;
        scatter(datagram, landing.prepare(target.data(), payload, packets, rest));
        REQUIRE(landing.packets() == packets);
        for (std::size_t i = 0; i < packets; ++i) {
          const auto packet = std::span(datagram).subspan(i * size, size);
          CHECK(std::ranges::equal(landing.payload(i), packet.subspan(wire::kBthBytes, payload)));
          CHECK(landing.payload(i).data() == target.data() + i * payload);
          CHECK(std::ranges::equal(landing.frame(i).first(wire::kBthBytes), packet.first(wire::kBthBytes)));
          CHECK(std::ranges::equal(landing.frame(i).last(wire::kIcrcBytes), packet.last(wire::kIcrcBytes)));
        }
        for (std::size_t first = packets + 1; first-- > 0;) {
          scatter(datagram, landing.prepare(target.data(), payload, packets, rest));
          CHECK(std::ranges::equal(landing.gather(first), std::span(datagram).subspan(first * size)));
        }
      }
    }
  }
}

TEST_CASE("the largest batches fit") {
  for (const std::size_t payload : {1008, 4096}) {
    const std::size_t size = payload + Landing::kFrameBytes;
    const std::size_t packets = std::min<std::size_t>(Landing::kMaxPackets, 65507 / size);
    const std::size_t rest = std::min<std::size_t>(size - 1, 65507 - packets * size);
    const Bytes datagram = test::random_fill(payload, packets * size + rest);
    Bytes target(packets * payload);
    Landing landing;
    scatter(datagram, landing.prepare(target.data(), payload, packets, rest));
    CHECK(std::ranges::equal(landing.gather(0), datagram));
  }
}

}  // namespace
}  // namespace paralet
