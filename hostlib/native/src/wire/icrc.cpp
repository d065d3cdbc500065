// SPDX-License-Identifier: Apache-2.0
#include "wire/icrc.hpp"

#include <isa-l/crc.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "wire/wire.hpp"

namespace paralet {
namespace {

constexpr std::size_t kOnes = 8;  // bytes of ones stand for the LRH; then IP and UDP
constexpr std::size_t kIpv4Bytes = 20;
constexpr std::size_t kIpv6Bytes = 40;
constexpr std::size_t kUdpBytes = 8;
constexpr std::size_t kIpv4Prefix = kOnes + kIpv4Bytes + kUdpBytes;
constexpr std::size_t kIdOffset = kOnes + 4;  // of the identification in the prefix
constexpr std::size_t kResv8aOffset = 4;      // in the BTH
constexpr std::uint8_t kUdp = 17;

/// ISA-L leaves the upper halves of vector registers dirty, and SSE instructions after that have false dependencies on
/// them: over 100 ns per packet on Xeons with AVX-512.
void clean_vector_registers() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx") != 0) {
    asm volatile("vzeroupper"
                 :
                 :
                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
                   "xmm12", "xmm13", "xmm14", "xmm15");
  }
#endif
}

std::uint32_t crc32(std::uint32_t state, const void* data, std::size_t length) {
  const std::uint32_t crc = crc32_gzip_refl(state, static_cast<const unsigned char*>(data), length);
  clean_vector_registers();
  return crc;
}

/// Writes an IPv4 header with the fields masked that routers may change; returns its bytes.
std::size_t put_ipv4(std::byte* ip, const UdpFlow& flow, std::uint16_t ip_id, std::size_t udp_bytes) {
  ip[0] = std::byte{0x45};
  ip[1] = std::byte{0xFF};  // masked: type of service
  wire::put_u16(ip + 2, static_cast<std::uint16_t>(kIpv4Bytes + udp_bytes));
  wire::put_u16(ip + 4, ip_id);
  wire::put_u16(ip + 6, 0x4000);  // DF
  ip[8] = std::byte{0xFF};        // masked: TTL
  ip[9] = std::byte{kUdp};
  wire::put_u16(ip + 10, 0xFFFF);  // masked: header checksum
  wire::put_u32(ip + 12, flow.src_address.ipv4());
  wire::put_u32(ip + 16, flow.dst_address.ipv4());
  return kIpv4Bytes;
}

/// The same for IPv6.
std::size_t put_ipv6(std::byte* ip, const UdpFlow& flow, std::size_t udp_bytes) {
  wire::put_u32(ip, 0x6FFFFFFF);  // masked: traffic class and flow label
  wire::put_u16(ip + 4, static_cast<std::uint16_t>(udp_bytes));
  ip[6] = std::byte{kUdp};
  ip[7] = std::byte{0xFF};  // masked: hop limit
  std::memcpy(ip + 8, flow.src_address.bytes().data(), 16);
  std::memcpy(ip + 24, flow.dst_address.bytes().data(), 16);
  return kIpv6Bytes;
}

/// CRC of everything before the payload, in one call: several calls for a few bytes each would cost as much as the
/// payload.
std::uint32_t prefix_crc(const UdpFlow& flow, std::uint16_t ip_id, std::size_t datagram_bytes,
                         std::span<const std::byte> header) {
  std::array<std::byte, kOnes + kIpv6Bytes + kUdpBytes + wire::kMaxHeaderBytes> b;
  std::memset(b.data(), 0xFF, kOnes);
  std::byte* ip = b.data() + kOnes;
  const std::size_t udp_bytes = kUdpBytes + datagram_bytes;
  std::byte* udp =
      ip + (flow.dst_address.is_ipv4() ? put_ipv4(ip, flow, ip_id, udp_bytes) : put_ipv6(ip, flow, udp_bytes));
  wire::put_u16(udp, flow.src_port);
  wire::put_u16(udp + 2, flow.dst_port);
  wire::put_u16(udp + 4, static_cast<std::uint16_t>(udp_bytes));
  wire::put_u16(udp + 6, 0xFFFF);  // masked: checksum
  std::byte* bth = udp + kUdpBytes;
  std::memcpy(bth, header.data(), header.size());
  bth[kResv8aOffset] = std::byte{0xFF};
  return crc32(0, b.data(), static_cast<std::size_t>(bth - b.data()) + header.size());
}

}  // namespace

std::uint32_t icrc(const UdpFlow& flow, std::uint16_t ip_id, std::span<const std::byte> header,
                   std::span<const std::byte> payload, std::uint8_t pad) {
  const std::size_t bytes = header.size() + payload.size() + pad + wire::kIcrcBytes;
  const auto first = header.first(std::min(header.size(), wire::kMaxHeaderBytes));
  std::uint32_t crc = prefix_crc(flow, ip_id, bytes, first);
  if (first.size() < header.size()) crc = crc32(crc, header.data() + first.size(), header.size() - first.size());
  if (!payload.empty()) crc = crc32(crc, payload.data(), payload.size());
  static constexpr std::array<std::byte, 4> kZeros{};
  return pad == 0 ? crc : crc32(crc, kZeros.data(), pad);
}

void put_icrc(std::byte* out, std::uint32_t icrc) { wire::put_u32(out, __builtin_bswap32(icrc)); }

bool IcrcVerifier::verify(const UdpFlow& flow, std::span<const std::byte> datagram, std::uint16_t likely_id,
                          std::uint16_t max_id) {
  const std::size_t covered = datagram.size() - wire::kIcrcBytes;
  return verify(flow, datagram.first(covered), {}, datagram.subspan(covered), likely_id, max_id);
}

bool IcrcVerifier::verify(const UdpFlow& flow, std::span<const std::byte> header, std::span<const std::byte> payload,
                          std::span<const std::byte> icrc, std::uint16_t likely_id, std::uint16_t max_id) {
  const std::uint32_t computed = paralet::icrc(flow, likely_id, header, payload);
  const std::uint32_t received = __builtin_bswap32(wire::get_u32(icrc.data()));
  std::uint32_t difference = computed ^ received;
  if (difference == 0) return true;
  if (!flow.dst_address.is_ipv4()) return false;
  const Inverse& inv = inverse(header.size() + payload.size() + icrc.size());
  std::uint16_t id = likely_id;
  for (std::size_t i = 0; i < 16; ++i) {
    if ((difference & inv.pivot[i]) != 0) {
      difference ^= inv.vector[i];
      id ^= inv.id[i];
    }
  }
  return difference == 0 && id <= max_id;
}

const IcrcVerifier::Inverse& IcrcVerifier::inverse(std::size_t length) {
  Inverse& entry = cache_[length % cache_.size()];
  if (entry.length == length) return entry;
  entry.length = length;
  std::vector<std::byte> message(kIpv4Prefix + length - wire::kIcrcBytes, std::byte{0});
  const std::uint32_t zero = crc32(0, message.data(), message.size());
  for (std::size_t bit = 0; bit < 16; ++bit) {
    wire::put_u16(message.data() + kIdOffset, static_cast<std::uint16_t>(1U << bit));
    entry.vector[bit] = crc32(0, message.data(), message.size()) ^ zero;
    entry.id[bit] = static_cast<std::uint16_t>(1U << bit);
  }
  // Gauss-Jordan elimination over GF(2). The map is injective, because a CRC-32 detects every burst of up to 32 bits.
  for (std::size_t i = 0; i < 16; ++i) {
    entry.pivot[i] = std::bit_floor(entry.vector[i]);
    for (std::size_t j = 0; j < 16; ++j) {
      if (j != i && (entry.vector[j] & entry.pivot[i]) != 0) {
        entry.vector[j] ^= entry.vector[i];
        entry.id[j] ^= entry.id[i];
      }
    }
  }
  return entry;
}

}  // namespace paralet
