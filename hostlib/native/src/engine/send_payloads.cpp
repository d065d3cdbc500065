// SPDX-License-Identifier: Apache-2.0
#include "engine/send_payloads.hpp"

#include "engine/handshake.hpp"
#include "wire/wire.hpp"

namespace paralet::handshake {
namespace {

constexpr std::uint8_t kAdvertisementType = 1;
constexpr std::uint8_t kFlowletEndType = 2;
constexpr std::uint8_t kFusedAdvertisementType = 3;
constexpr std::uint8_t kEagerType = 4;
constexpr std::uint8_t kAskType = 5;
constexpr std::uint8_t kEagerCreditType = 6;

/// Type and version of an item of a SEND, and two bytes of zeros.
template <std::size_t kBytes>
std::array<std::byte, kBytes> begun(std::uint8_t type) {
  std::array<std::byte, kBytes> out{};
  out[0] = static_cast<std::byte>(type);
  out[1] = static_cast<std::byte>(kVersion);
  return out;
}

bool begins(std::span<const std::byte> bytes, std::uint8_t type) {
  return bytes[0] == static_cast<std::byte>(type) && bytes[1] == static_cast<std::byte>(kVersion) &&
         wire::get_u16(bytes.data() + 2) == 0;
}

}  // namespace

std::array<std::byte, kFusedAdvertisementBytes> encode(const Advertisement& advertisement, bool fused) {
  std::array<std::byte, kFusedAdvertisementBytes> out{};
  std::byte* p = out.data();
  p[0] = static_cast<std::byte>(fused ? kFusedAdvertisementType : kAdvertisementType);
  p[1] = static_cast<std::byte>(kVersion);
  wire::put_u16(p + 2, advertisement.slot);
  wire::put_u32(p + 4, advertisement.connection);
  wire::put_u32(p + 8, advertisement.sequence);
  wire::put_u32(p + 12, advertisement.tag);
  wire::put_u32(p + 16, advertisement.rkeys[0]);
  wire::put_u32(p + 20, advertisement.eager);
  wire::put_u64(p + 24, advertisement.address);
  wire::put_u64(p + 32, advertisement.length);
  for (std::size_t i = 1; fused && i < kMaxMembers; ++i) wire::put_u32(p + 36 + 4 * i, advertisement.rkeys[i]);
  return out;
}

std::optional<Advertisement> decode_advertisement(std::span<const std::byte> bytes) {
  const bool fused = bytes.size() == kFusedAdvertisementBytes;
  if (!fused && bytes.size() != kAdvertisementBytes) return std::nullopt;
  const std::byte* p = bytes.data();
  const std::uint8_t type = fused ? kFusedAdvertisementType : kAdvertisementType;
  if (std::to_integer<std::uint8_t>(p[0]) != type || std::to_integer<std::uint8_t>(p[1]) != kVersion) {
    return std::nullopt;
  }
  Advertisement out{.connection = wire::get_u32(p + 4),
                    .sequence = wire::get_u32(p + 8),
                    .tag = wire::get_u32(p + 12),
                    .slot = wire::get_u16(p + 2),
                    .rkeys = {wire::get_u32(p + 16)},
                    .eager = wire::get_u32(p + 20),
                    .address = wire::get_u64(p + 24),
                    .length = wire::get_u64(p + 32)};
  for (std::size_t i = 1; fused && i < kMaxMembers; ++i) out.rkeys[i] = wire::get_u32(p + 36 + 4 * i);
  return out;
}

std::array<std::byte, kFlowletEndBytes> encode(const FlowletEnd& end) {
  std::array<std::byte, kFlowletEndBytes> out{};
  std::byte* p = out.data();
  p[0] = static_cast<std::byte>(kFlowletEndType);
  p[1] = static_cast<std::byte>(kVersion);
  wire::put_u16(p + 2, end.slot);
  wire::put_u16(p + 4, end.count);
  wire::put_u32(p + 8, end.bytes);
  return out;
}

std::optional<FlowletEnd> decode_flowlet_end(std::span<const std::byte> bytes) {
  if (bytes.size() != kFlowletEndBytes) return std::nullopt;
  const std::byte* p = bytes.data();
  if (std::to_integer<std::uint8_t>(p[0]) != kFlowletEndType || std::to_integer<std::uint8_t>(p[1]) != kVersion) {
    return std::nullopt;
  }
  return FlowletEnd{.slot = wire::get_u16(p + 2), .count = wire::get_u16(p + 4), .bytes = wire::get_u32(p + 8)};
}

std::array<std::byte, kEagerHeaderBytes> encode(const EagerMessage& message) {
  auto out = begun<kEagerHeaderBytes>(kEagerType);
  wire::put_u32(out.data() + 4, message.connection);
  wire::put_u32(out.data() + 8, message.number);
  wire::put_u32(out.data() + 12, message.advertised);
  wire::put_u32(out.data() + 16, message.tag);
  return out;
}

std::optional<EagerMessage> decode_eager_message(std::span<const std::byte> bytes) {
  if (bytes.size() < kEagerHeaderBytes || !begins(bytes, kEagerType)) return std::nullopt;
  return EagerMessage{.connection = wire::get_u32(bytes.data() + 4),
                      .number = wire::get_u32(bytes.data() + 8),
                      .advertised = wire::get_u32(bytes.data() + 12),
                      .tag = wire::get_u32(bytes.data() + 16)};
}

std::array<std::byte, kAskBytes> encode(const Ask& ask) {
  auto out = begun<kAskBytes>(kAskType);
  wire::put_u32(out.data() + 4, ask.connection);
  wire::put_u32(out.data() + 8, ask.number);
  return out;
}

std::optional<Ask> decode_ask(std::span<const std::byte> bytes) {
  if (bytes.size() != kAskBytes || !begins(bytes, kAskType)) return std::nullopt;
  return Ask{.connection = wire::get_u32(bytes.data() + 4), .number = wire::get_u32(bytes.data() + 8)};
}

std::array<std::byte, kEagerCreditBytes> encode(const EagerCredit& credit) {
  auto out = begun<kEagerCreditBytes>(kEagerCreditType);
  wire::put_u32(out.data() + 4, credit.connection);
  wire::put_u32(out.data() + 8, credit.taken);
  wire::put_u32(out.data() + 12, credit.done);
  wire::put_u32(out.data() + 16, credit.advertised);
  return out;
}

std::optional<EagerCredit> decode_eager_credit(std::span<const std::byte> bytes) {
  if (bytes.size() != kEagerCreditBytes || !begins(bytes, kEagerCreditType)) return std::nullopt;
  return EagerCredit{.connection = wire::get_u32(bytes.data() + 4),
                     .taken = wire::get_u32(bytes.data() + 8),
                     .done = wire::get_u32(bytes.data() + 12),
                     .advertised = wire::get_u32(bytes.data() + 16)};
}

}  // namespace paralet::handshake
