// SPDX-License-Identifier: Apache-2.0
// RoCEv2 packet headers: IBTA specification volume 1, chapter 9 (transport layer) and annex A17 (RoCEv2).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace paralet::wire {

inline constexpr std::uint16_t kRocePort = 4791;            // IANA, annex A17.4.5.2
inline constexpr std::uint16_t kFirstEntropyPort = 0xC000;  // source ports that carry entropy: 0xC000..0xFFFF
inline constexpr unsigned kEntropyPorts = 0x10000 - kFirstEntropyPort;
inline constexpr std::uint32_t kPsnMask = 0xFFFFFF;
inline constexpr std::uint16_t kDefaultPkey = 0xFFFF;

inline constexpr std::size_t kBthBytes = 12;
inline constexpr std::size_t kRethBytes = 16;
inline constexpr std::size_t kImmBytes = 4;
inline constexpr std::size_t kMaxHeaderBytes = kBthBytes + kRethBytes + kImmBytes;
inline constexpr std::size_t kAethBytes = 4;
/// Behind the AETH of an acknowledgement, each where both ends have agreed to it: how many packets have come marked,
/// and how long the newest has waited in the responder.
inline constexpr std::size_t kMarkCountBytes = 4;
inline constexpr std::size_t kHostDelayBytes = 4;
inline constexpr std::size_t kIcrcBytes = 4;
inline constexpr std::size_t kIpUdpBytes = 28;      ///< IPv4
inline constexpr std::size_t kIpv6ExtraBytes = 20;  ///< of an IPv6 header beside an IPv4 one
/// The two ECN bits of the IPv4 TOS or IPv6 traffic class byte (RFC 3168, section 5).
inline constexpr std::uint8_t kEcnMask = 0x03;
inline constexpr std::uint8_t kEcnEct0 = 0x02;  ///< the sender reacts to marks
inline constexpr std::uint8_t kEcnCe = 0x03;    ///< a switch marked the packet: congestion experienced
/// A congestion notification packet (annex A17.9.3): BTH, 16 reserved bytes, ICRC.
inline constexpr std::uint8_t kCnpOpcode = 0x81;
inline constexpr std::size_t kCnpBytes = kBthBytes + 16 + kIcrcBytes;
inline constexpr std::size_t kMaxDatagramBytes = 65536;  ///< room for any UDP datagram
/// The most bytes that a data packet adds to its payload on an IP link: IPv4, UDP, BTH, RETH, ImmDt, ICRC.
inline constexpr std::size_t kMaxOverheadBytes = kIpUdpBytes + kBthBytes + kRethBytes + kImmBytes + kIcrcBytes;

/// Payload bytes of the largest packet that a link with this MTU carries over IPv4 or IPv6: a power of two, at least
/// 256 and at most 4096.
std::uint32_t largest_path_mtu(std::uint32_t mtu_bytes, bool ipv6 = false);

/// RC opcodes that this transport supports (table 38). The responder rejects READ and atomics.
enum class Opcode : std::uint8_t {
  kSendFirst = 0x00,
  kSendMiddle = 0x01,
  kSendLast = 0x02,
  kSendLastImm = 0x03,
  kSendOnly = 0x04,
  kSendOnlyImm = 0x05,
  kWriteFirst = 0x06,
  kWriteMiddle = 0x07,
  kWriteLast = 0x08,
  kWriteLastImm = 0x09,
  kWriteOnly = 0x0A,
  kWriteOnlyImm = 0x0B,
  kAcknowledge = 0x11,
};

/// Properties of an opcode.
struct OpcodeTraits {
  bool write;  ///< RDMA WRITE, else SEND or ACKNOWLEDGE
  bool first;  ///< starts a message
  bool last;   ///< ends a message
  bool imm;    ///< carries immediate data
  /// An unsupported or reserved request: NAK invalid request (section 9.9.3.1). Bytes behind its BTH are not parsed.
  bool refused = false;
};

/// Nothing for opcodes of other transport services, and for responses to requests that this transport never sends.
std::optional<OpcodeTraits> traits(std::uint8_t opcode);

/// NAK codes (table 46) and the classes of the AETH syndrome (table 45).
enum class Syndrome : std::uint8_t {
  kAck = 0x00,          // 000 CCCCC: credit count
  kRnrNak = 0x20,       // 001 TTTTT: receiver not ready timer
  kNakSequence = 0x60,  // 011 00000
  kNakInvalidRequest = 0x61,
  kNakRemoteAccess = 0x62,
  kNakRemoteOperation = 0x63,
};
inline constexpr std::uint8_t kAckNoCredits = 0x1F;  // end-to-end credits not in use

/// Delay of an RNR timer code (table 47), in nanoseconds.
std::int64_t rnr_delay_ns(std::uint8_t timer_code);

struct Packet {
  std::uint8_t opcode = 0;
  OpcodeTraits kind{};
  bool ack_request = false;
  std::uint32_t dest_qpn = 0;
  std::uint32_t psn = 0;
  // RETH, on the first packet of a WRITE
  std::uint64_t remote_address = 0;
  std::uint32_t rkey = 0;
  std::uint32_t dma_length = 0;
  std::uint32_t imm = 0;
  // AETH, on an ACKNOWLEDGE
  std::uint8_t syndrome = 0;
  std::uint32_t msn = 0;
  std::span<const std::byte> payload;
};

/// kCnp: a well-formed congestion notification packet; only `opcode` and `dest_qpn` are set.
enum class ParseError : std::uint8_t { kNone, kTruncated, kOpcode, kVersion, kPartition, kCnp };

/// Parses one UDP payload (BTH to ICRC). `out.payload` points into `datagram`. Checks all lengths, but not the ICRC.
ParseError parse(std::span<const std::byte> datagram, Packet& out);

/// BTH, RETH, ImmDt or AETH of an outgoing packet. The caller adds payload, padding and ICRC.
struct Header {
  std::array<std::byte, kMaxHeaderBytes> bytes;
  std::uint8_t length = 0;
};

Header data_header(Opcode opcode, std::uint32_t dest_qpn, std::uint32_t psn, bool ack_request, std::uint8_t pad,
                   std::uint64_t remote_address, std::uint32_t rkey, std::uint32_t dma_length, std::uint32_t imm);
Header ack_header(std::uint32_t dest_qpn, std::uint32_t psn, std::uint8_t syndrome, std::uint32_t msn);
/// BTH and payload of a congestion notification packet: BECN set, 16 bytes of zeros.
Header cnp_header(std::uint32_t dest_qpn);
/// Appends the number of marked packets, modulo 2^32, or a host delay in nanoseconds to an acknowledgement.
void append_word(Header& header, std::uint32_t word);

inline void put_u16(std::byte* p, std::uint16_t v) {
  p[0] = static_cast<std::byte>(v >> 8);
  p[1] = static_cast<std::byte>(v);
}
inline void put_u32(std::byte* p, std::uint32_t v) {
  put_u16(p, static_cast<std::uint16_t>(v >> 16));
  put_u16(p + 2, static_cast<std::uint16_t>(v));
}
inline void put_u64(std::byte* p, std::uint64_t v) {
  put_u32(p, static_cast<std::uint32_t>(v >> 32));
  put_u32(p + 4, static_cast<std::uint32_t>(v));
}
inline std::uint16_t get_u16(const std::byte* p) {
  return static_cast<std::uint16_t>((std::to_integer<unsigned>(p[0]) << 8) | std::to_integer<unsigned>(p[1]));
}
inline std::uint32_t get_u32(const std::byte* p) {
  return (static_cast<std::uint32_t>(get_u16(p)) << 16) | get_u16(p + 2);
}
inline std::uint64_t get_u64(const std::byte* p) {
  return (static_cast<std::uint64_t>(get_u32(p)) << 32) | get_u32(p + 4);
}

}  // namespace paralet::wire
