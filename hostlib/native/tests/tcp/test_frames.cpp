// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>

#include "bytes.hpp"
#include "tcp/frames.hpp"

namespace paralet::tcp {
namespace {

using test::from_hex;
using test::to_hex;

std::optional<Frame> frame_of(const std::string& hex) {
  const auto bytes = from_hex(hex);
  return decode_frame(std::span<const std::byte, kFrameBytes>(bytes));
}

TEST_CASE("a hello has the bytes of docs/tcp.md") {
  const Hello hello{
      .to_qpn = 0x010203, .to_token = 0x04050607, .from_qpn = 0x08090A, .from_token = 0x0B0C0D0E, .attempt = 2};
  const auto bytes = encode(hello);
  CHECK(to_hex(bytes) == "504c543100010203040506070008090a0b0c0d0e00000002");
  CHECK(decode_hello(bytes) == hello);
  auto other = bytes;
  other[0] = std::byte{'X'};
  CHECK_FALSE(decode_hello(other));
}

TEST_CASE("notices have the bytes of docs/tcp.md") {
  const Notice welcome{.frames = 5};
  CHECK(to_hex(encode(welcome)) == "504c5457000000000000000000000005");
  CHECK(decode_notice(encode(welcome)) == welcome);
  const Notice answer{.kind = Notice::Kind::kAnswer, .frames = 6};
  CHECK(to_hex(encode(answer)) == "504c5441000000000000000000000006");
  CHECK(decode_notice(encode(answer)) == answer);
  const Notice refused{.kind = Notice::Kind::kRefused, .status = Status::kRemoteAccess, .frames = 7};
  CHECK(to_hex(encode(refused)) == "504c5452000000010000000000000007");
  CHECK(decode_notice(encode(refused)) == refused);
}

TEST_CASE("a notice with a reason that no receiver has is malformed") {
  for (const Status status : {Status::kSuccess, Status::kFlushed, Status::kRetryExceeded, Status::kPortDown}) {
    CHECK_FALSE(decode_notice(encode(Notice{.kind = Notice::Kind::kRefused, .status = status})));
  }
  for (const Notice::Kind kind : {Notice::Kind::kWelcome, Notice::Kind::kAnswer}) {
    CHECK_FALSE(decode_notice(encode(Notice{.kind = kind, .status = Status::kRemoteAccess})));
  }
}

TEST_CASE("frames have the bytes of docs/tcp.md") {
  struct Case {
    Frame frame;
    const char* hex;
  };
  const Frame write{.kind = WorkKind::kWrite, .length = 0x100, .rkey = 0xAABBCCDD, .address = 0x1122334455667788};
  Frame with_imm = write;
  with_imm.kind = WorkKind::kWriteImm;
  with_imm.imm = 0x00010002;
  for (const Case& c :
       {Case{write, "0100000000000100aabbccdd000000001122334455667788"},
        Case{with_imm, "0200000000000100aabbccdd000100021122334455667788"},
        Case{{.kind = WorkKind::kSend, .length = 40}, "030000000000002800000000000000000000000000000000"}}) {
    std::array<std::byte, kFrameBytes> bytes{};
    encode(c.frame, bytes);
    CHECK(to_hex(bytes) == c.hex);
    CHECK(decode_frame(bytes) == c.frame);
  }
}

TEST_CASE("a frame of an unknown kind, or with a field that its kind does not have, is malformed") {
  CHECK_FALSE(frame_of("000000000000002800000000000000000000000000000000"));  // kind
  CHECK_FALSE(frame_of("040000000000002800000000000000000000000000000000"));  // kind
  CHECK_FALSE(frame_of("030100000000002800000000000000000000000000000000"));  // reserved
  CHECK_FALSE(frame_of("030000000000002800000001000000000000000000000000"));  // rkey of a SEND
  CHECK_FALSE(frame_of("030000000000002800000000000000000000000000000001"));  // address of a SEND
  CHECK_FALSE(frame_of("0300000000000028000000000000000a0000000000000000"));  // immediate data of a SEND
  CHECK_FALSE(frame_of("0100000000000100aabbccdd000000011122334455667788"));  // immediate data of a plain WRITE
}

}  // namespace
}  // namespace paralet::tcp
