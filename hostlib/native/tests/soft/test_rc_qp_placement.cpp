// SPDX-License-Identifier: Apache-2.0
// RC QP: where the responder wants payloads to be placed (soft/direct_placement.hpp).
#include "rc_qp_link.hpp"

namespace paralet::rc_qp_test {
namespace {

/// A responder that receives a WRITE of `length` bytes, packet by packet.
struct PlacedWrite {
  explicit PlacedWrite(std::uint32_t bytes) : target(link, bytes), length(bytes) {}
  Link link{{.path_mtu = 256, .receive_bytes = 1024}};
  Target target;
  std::uint32_t length;

  void take(Opcode opcode, std::uint32_t psn, std::size_t bytes = 256) {
    const auto pad = static_cast<std::uint8_t>((4 - bytes % 4) % 4);
    link.inject(serialize(wire::data_header(opcode, kResponderQpn, psn, false, pad, 0, target.rkey, length, 0),
                          Bytes(bytes, std::byte{1}), pad));
  }
  /// The target of the missing payloads is `bytes` long and starts at `offset` of the region.
  void check(std::size_t offset, std::size_t bytes) {
    const auto placement = link.responder_qp().placement_target();
    CHECK(placement.size() == bytes);
    if (bytes > 0) CHECK(placement.data() == target.bytes.data() + offset);
  }
};

TEST_CASE("payloads have a target from the first packet of a WRITE until only its last is missing") {
  for (const std::uint32_t rest : {1U, 100U, 255U, 256U}) {
    CAPTURE(rest);
    PlacedWrite placed(4 * 256 + rest);
    placed.check(0, 0);
    placed.take(Opcode::kWriteFirst, 0);
    placed.check(256, std::size_t{3} * 256);
    placed.take(Opcode::kWriteFirst, 0);        // a duplicate
    placed.take(Opcode::kWriteMiddle, 2);       // out of order
    placed.take(Opcode::kWriteMiddle, 1, 252);  // refused
    placed.check(256, std::size_t{3} * 256);
    placed.take(Opcode::kWriteMiddle, 1);
    placed.check(512, std::size_t{2} * 256);
    placed.take(Opcode::kWriteMiddle, 2);
    placed.check(768, 256);
    placed.take(Opcode::kWriteMiddle, 3);
    placed.check(0, 0);
    placed.take(Opcode::kWriteLast, 4, rest);
    placed.check(0, 0);
    CHECK(placed.target.bytes == Bytes(placed.length, std::byte{1}));
  }
}

TEST_CASE("payloads have no target without a WRITE of several packets, on a failed QP, or without the region") {
  PlacedWrite placed(1000);
  const auto begin = [&] {
    placed.take(Opcode::kWriteFirst, 0);
    placed.check(256, 512);
  };
  SUBCASE("a WRITE of one packet") {
    placed.length = 100;
    placed.take(Opcode::kWriteOnly, 0, 100);
  }
  SUBCASE("a WRITE of two packets") {
    placed.length = 512;
    placed.take(Opcode::kWriteFirst, 0);
  }
  SUBCASE("a SEND") {
    placed.take(Opcode::kSendFirst, 0);
    CHECK(placed.link.responder().held_buffer() != nullptr);
  }
  SUBCASE("failed") {
    begin();
    placed.link.responder_qp().requester().fail(Status::kFlushed);
  }
  SUBCASE("deregistered") {
    begin();
    REQUIRE(placed.link.memory().remove(placed.target.rkey));
  }
  SUBCASE("retired") {
    begin();
    placed.link.memory().retire(placed.target.rkey);
  }
  placed.check(0, 0);
}

TEST_CASE("a payload may already be in its place, or in the place of a later one") {
  PlacedWrite placed(4 * 256);
  placed.take(Opcode::kWriteFirst, 0);
  const auto room = placed.link.responder().placement_target();
  const Bytes payloads = test::random_fill(1, room.size());
  std::ranges::copy(payloads, room.begin());
  Parsed second(serialize(wire::data_header(Opcode::kWriteMiddle, kResponderQpn, 1, false, 0, 0, 0, 0, 0)));
  SUBCASE("its own place") { second.packet.payload = room.first(256); }
  SUBCASE("a later place") { second.packet.payload = room.last(256); }
  SUBCASE("between two places") { second.packet.payload = room.subspan(100, 256); }
  const Bytes payload(second.packet.payload.begin(), second.packet.payload.end());
  placed.link.responder().on_request(second.packet);
  CHECK(std::equal(payload.begin(), payload.end(), placed.target.bytes.begin() + 256));
  placed.check(512, 256);
}

}  // namespace
}  // namespace paralet::rc_qp_test
