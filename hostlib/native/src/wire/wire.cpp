// SPDX-License-Identifier: Apache-2.0
#include "wire/wire.hpp"

#include <algorithm>
#include <bit>

namespace paralet::wire {
namespace {

constexpr std::uint8_t kServiceMask = 0xE0;  // the transport service (section 9.2.1): 0 is RC
constexpr std::uint8_t kReadRequest = 0x0C;
constexpr std::byte kMigrated{0x40};         // MigReq of the BTH (section 9.2.3)
constexpr std::byte kBecn{0x40};             // of the BTH's fifth byte (annex A17.9.3)
constexpr std::uint8_t kFirstAtomic = 0x13;  // from here on: atomics, SEND with invalidate, reserved

/// Requests of the RC service that this transport does not support. 0x0D to 0x10 and 0x12 are responses.
bool refused(std::uint8_t opcode) {
  return (opcode & kServiceMask) == 0 && (opcode == kReadRequest || opcode >= kFirstAtomic);
}

}  // namespace

std::uint32_t largest_path_mtu(std::uint32_t mtu_bytes, bool ipv6) {
  const auto overhead = static_cast<std::uint32_t>(kMaxOverheadBytes + (ipv6 ? kIpv6ExtraBytes : 0));
  if (mtu_bytes < 256 + overhead) return 256;
  return std::min(4096U, std::bit_floor(mtu_bytes - overhead));
}

std::optional<OpcodeTraits> traits(std::uint8_t opcode) {
  switch (static_cast<Opcode>(opcode)) {
    case Opcode::kSendFirst:
      return OpcodeTraits{.write = false, .first = true, .last = false, .imm = false};
    case Opcode::kSendMiddle:
      return OpcodeTraits{.write = false, .first = false, .last = false, .imm = false};
    case Opcode::kSendLast:
      return OpcodeTraits{.write = false, .first = false, .last = true, .imm = false};
    case Opcode::kSendLastImm:
      return OpcodeTraits{.write = false, .first = false, .last = true, .imm = true};
    case Opcode::kSendOnly:
      return OpcodeTraits{.write = false, .first = true, .last = true, .imm = false};
    case Opcode::kSendOnlyImm:
      return OpcodeTraits{.write = false, .first = true, .last = true, .imm = true};
    case Opcode::kWriteFirst:
      return OpcodeTraits{.write = true, .first = true, .last = false, .imm = false};
    case Opcode::kWriteMiddle:
      return OpcodeTraits{.write = true, .first = false, .last = false, .imm = false};
    case Opcode::kWriteLast:
      return OpcodeTraits{.write = true, .first = false, .last = true, .imm = false};
    case Opcode::kWriteLastImm:
      return OpcodeTraits{.write = true, .first = false, .last = true, .imm = true};
    case Opcode::kWriteOnly:
      return OpcodeTraits{.write = true, .first = true, .last = true, .imm = false};
    case Opcode::kWriteOnlyImm:
      return OpcodeTraits{.write = true, .first = true, .last = true, .imm = true};
    case Opcode::kAcknowledge:
      return OpcodeTraits{.write = false, .first = true, .last = true, .imm = false};
  }
  if (refused(opcode)) return OpcodeTraits{.write = false, .first = true, .last = true, .imm = false, .refused = true};
  return std::nullopt;
}

std::int64_t rnr_delay_ns(std::uint8_t timer_code) {
  // Table 47, in units of 10 microseconds.
  static constexpr std::array<std::uint32_t, 32> kTable = {
      65536, 1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,   192,
      256,   384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
  return static_cast<std::int64_t>(kTable[timer_code & 0x1F]) * 10'000;
}

ParseError parse(std::span<const std::byte> datagram, Packet& out) {
  if (datagram.size() < kBthBytes + kIcrcBytes) return ParseError::kTruncated;
  const std::byte* p = datagram.data();
  out.opcode = std::to_integer<std::uint8_t>(p[0]);
  const auto kind = traits(out.opcode);
  const bool cnp = out.opcode == kCnpOpcode && datagram.size() == kCnpBytes;
  if (!kind && !cnp) return ParseError::kOpcode;
  const auto flags = std::to_integer<std::uint8_t>(p[1]);
  if ((flags & 0x0F) != 0) return ParseError::kVersion;
  // Membership bit aside, only the default partition is served (section 10.9).
  if ((get_u16(p + 2) & 0x7FFF) != (kDefaultPkey & 0x7FFF)) return ParseError::kPartition;
  const std::size_t pad = (flags >> 4) & 3;
  out.dest_qpn = get_u32(p + 4) & kPsnMask;
  if (cnp) return ParseError::kCnp;
  out.kind = *kind;
  const std::uint32_t last_word = get_u32(p + 8);
  out.ack_request = (last_word & 0x80000000U) != 0;
  out.psn = last_word & kPsnMask;

  std::size_t offset = kBthBytes;
  const std::size_t end = datagram.size() - kIcrcBytes;
  const bool ack = static_cast<Opcode>(out.opcode) == Opcode::kAcknowledge;
  if (out.kind.write && out.kind.first) {
    if (end < offset + kRethBytes) return ParseError::kTruncated;
    out.remote_address = get_u64(p + offset);
    out.rkey = get_u32(p + offset + 8);
    out.dma_length = get_u32(p + offset + 12);
    offset += kRethBytes;
  }
  if (out.kind.imm) {
    if (end < offset + kImmBytes) return ParseError::kTruncated;
    out.imm = get_u32(p + offset);
    offset += kImmBytes;
  }
  if (ack) {
    if (end < offset + kAethBytes) return ParseError::kTruncated;
    const std::uint32_t aeth = get_u32(p + offset);
    out.syndrome = static_cast<std::uint8_t>(aeth >> 24);
    out.msn = aeth & kPsnMask;
    offset += kAethBytes;
  }
  if (end < offset + pad) return ParseError::kTruncated;
  out.payload = datagram.subspan(offset, end - offset - pad);
  return ParseError::kNone;
}

namespace {

void put_bth(std::byte* p, std::uint8_t opcode, std::uint8_t pad, std::uint32_t dest_qpn, std::uint32_t psn,
             bool ack_request) {
  p[0] = static_cast<std::byte>(opcode);
  // SE = 0, TVer = 0, and M = 1 (migrated) as RNICs send it: some drop packets with M = 0.
  p[1] = kMigrated | static_cast<std::byte>((pad & 3U) << 4);
  put_u16(p + 2, kDefaultPkey);
  put_u32(p + 4, dest_qpn & kPsnMask);
  put_u32(p + 8, (psn & kPsnMask) | (ack_request ? 0x80000000U : 0U));
}

}  // namespace

Header data_header(Opcode opcode, std::uint32_t dest_qpn, std::uint32_t psn, bool ack_request, std::uint8_t pad,
                   std::uint64_t remote_address, std::uint32_t rkey, std::uint32_t dma_length, std::uint32_t imm) {
  Header header;
  const auto kind = *traits(static_cast<std::uint8_t>(opcode));
  std::byte* p = header.bytes.data();
  put_bth(p, static_cast<std::uint8_t>(opcode), pad, dest_qpn, psn, ack_request);
  std::size_t offset = kBthBytes;
  if (kind.write && kind.first) {
    put_u64(p + offset, remote_address);
    put_u32(p + offset + 8, rkey);
    put_u32(p + offset + 12, dma_length);
    offset += kRethBytes;
  }
  if (kind.imm) {
    put_u32(p + offset, imm);
    offset += kImmBytes;
  }
  header.length = static_cast<std::uint8_t>(offset);
  return header;
}

Header ack_header(std::uint32_t dest_qpn, std::uint32_t psn, std::uint8_t syndrome, std::uint32_t msn) {
  Header header;
  put_bth(header.bytes.data(), static_cast<std::uint8_t>(Opcode::kAcknowledge), 0, dest_qpn, psn, false);
  put_u32(header.bytes.data() + kBthBytes, (static_cast<std::uint32_t>(syndrome) << 24) | (msn & kPsnMask));
  header.length = kBthBytes + kAethBytes;
  return header;
}

Header cnp_header(std::uint32_t dest_qpn) {
  Header header{};
  put_bth(header.bytes.data(), kCnpOpcode, 0, dest_qpn, 0, false);
  header.bytes[4] = kBecn;
  header.length = kCnpBytes - kIcrcBytes;
  return header;
}

void append_word(Header& header, std::uint32_t word) {
  put_u32(header.bytes.data() + header.length, word);
  header.length = static_cast<std::uint8_t>(header.length + sizeof word);
}

}  // namespace paralet::wire
