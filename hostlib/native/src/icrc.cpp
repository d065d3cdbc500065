// SPDX-License-Identifier: Apache-2.0
#include "icrc.hpp"

#include <isa-l/crc.h>

#include <bit>
#include <cstring>
#include <vector>

#include "wire.hpp"

namespace paralet {
namespace {

constexpr std::size_t kPrefix = 8 + 20 + 8;  // eight bytes of ones stand for the LRH, then IPv4 and UDP
constexpr std::size_t kIdOffset = 8 + 4;     // of the identification in the prefix
constexpr std::size_t kResv8aOffset = kPrefix + 4;

std::uint32_t crc32(std::uint32_t state, const void* data, std::size_t length) {
  return crc32_gzip_refl(state, static_cast<const unsigned char*>(data), length);
}

std::uint32_t prefix_crc(const UdpFlow& flow, std::uint16_t ip_id, std::size_t datagram_bytes, const std::byte* bth) {
  std::array<std::byte, kPrefix + wire::kBthBytes> b;
  std::memset(b.data(), 0xFF, 8);
  std::byte* ip = b.data() + 8;
  ip[0] = std::byte{0x45};
  ip[1] = std::byte{0xFF};  // masked: type of service
  wire::put_u16(ip + 2, static_cast<std::uint16_t>(20 + 8 + datagram_bytes));
  wire::put_u16(ip + 4, ip_id);
  wire::put_u16(ip + 6, 0x4000);  // DF
  ip[8] = std::byte{0xFF};        // masked: TTL
  ip[9] = std::byte{17};
  wire::put_u16(ip + 10, 0xFFFF);  // masked: header checksum
  wire::put_u32(ip + 12, flow.src_address);
  wire::put_u32(ip + 16, flow.dst_address);
  std::byte* udp = ip + 20;
  wire::put_u16(udp, flow.src_port);
  wire::put_u16(udp + 2, flow.dst_port);
  wire::put_u16(udp + 4, static_cast<std::uint16_t>(8 + datagram_bytes));
  wire::put_u16(udp + 6, 0xFFFF);  // masked: checksum
  std::memcpy(b.data() + kPrefix, bth, wire::kBthBytes);
  b[kResv8aOffset] = std::byte{0xFF};
  return crc32(0, b.data(), b.size());
}

}  // namespace

std::uint32_t icrc(const UdpFlow& flow, std::uint16_t ip_id, std::span<const std::byte> header,
                   std::span<const std::byte> payload, std::uint8_t pad) {
  const std::size_t bytes = header.size() + payload.size() + pad + wire::kIcrcBytes;
  std::uint32_t crc = prefix_crc(flow, ip_id, bytes, header.data());
  const auto extended = header.subspan(wire::kBthBytes);
  crc = crc32(crc, extended.data(), extended.size());
  crc = crc32(crc, payload.data(), payload.size());
  static constexpr std::array<std::byte, 4> kZeros{};
  return pad == 0 ? crc : crc32(crc, kZeros.data(), pad);
}

void put_icrc(std::byte* out, std::uint32_t icrc) { wire::put_u32(out, __builtin_bswap32(icrc)); }

bool IcrcVerifier::verify(const UdpFlow& flow, std::span<const std::byte> datagram, std::uint16_t likely_id,
                          std::uint16_t max_id) {
  const std::size_t covered = datagram.size() - wire::kIcrcBytes;
  const std::uint32_t computed = icrc(flow, likely_id, datagram.first(covered), {});
  const std::uint32_t received = __builtin_bswap32(wire::get_u32(datagram.data() + covered));
  std::uint32_t difference = computed ^ received;
  if (difference == 0) return true;
  const Inverse& inv = inverse(datagram.size());
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
  std::vector<std::byte> message(kPrefix + length - wire::kIcrcBytes, std::byte{0});
  const std::uint32_t zero = crc32(0, message.data(), message.size());
  for (std::size_t bit = 0; bit < 16; ++bit) {
    wire::put_u16(message.data() + kIdOffset, static_cast<std::uint16_t>(1U << bit));
    entry.vector[bit] = crc32(0, message.data(), message.size()) ^ zero;
    entry.id[bit] = static_cast<std::uint16_t>(1U << bit);
  }
  // Gauss-Jordan over GF(2). The map is injective: a CRC-32 sees every burst of up to 32 bits.
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
