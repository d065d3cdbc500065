// SPDX-License-Identifier: Apache-2.0
#include "tcp/frames.hpp"

#include "wire/wire.hpp"

namespace paralet::tcp {
namespace {

constexpr std::uint32_t kHelloMagic = 0x504C5431;    // "PLT1"
constexpr std::uint32_t kWelcomeMagic = 0x504C5457;  // "PLTW"
constexpr std::uint32_t kAnswerMagic = 0x504C5441;   // "PLTA"
constexpr std::uint32_t kRefusedMagic = 0x504C5452;  // "PLTR"

constexpr std::byte kWrite{1};
constexpr std::byte kWriteImm{2};
constexpr std::byte kSend{3};

std::uint32_t magic_of(Notice::Kind kind) {
  switch (kind) {
    case Notice::Kind::kWelcome:
      return kWelcomeMagic;
    case Notice::Kind::kAnswer:
      return kAnswerMagic;
    case Notice::Kind::kRefused:
      break;
  }
  return kRefusedMagic;
}

}  // namespace

std::array<std::byte, kHelloBytes> encode(const Hello& hello) {
  std::array<std::byte, kHelloBytes> out{};
  wire::put_u32(out.data(), kHelloMagic);
  wire::put_u32(out.data() + 4, hello.to_qpn);
  wire::put_u32(out.data() + 8, hello.to_token);
  wire::put_u32(out.data() + 12, hello.from_qpn);
  wire::put_u32(out.data() + 16, hello.from_token);
  wire::put_u32(out.data() + 20, hello.attempt);
  return out;
}

std::optional<Hello> decode_hello(std::span<const std::byte, kHelloBytes> bytes) {
  if (wire::get_u32(bytes.data()) != kHelloMagic) return std::nullopt;
  return Hello{.to_qpn = wire::get_u32(bytes.data() + 4),
               .to_token = wire::get_u32(bytes.data() + 8),
               .from_qpn = wire::get_u32(bytes.data() + 12),
               .from_token = wire::get_u32(bytes.data() + 16),
               .attempt = wire::get_u32(bytes.data() + 20)};
}

std::array<std::byte, kNoticeBytes> encode(const Notice& notice) {
  std::array<std::byte, kNoticeBytes> out{};
  wire::put_u32(out.data(), magic_of(notice.kind));
  wire::put_u32(out.data() + 4, static_cast<std::uint32_t>(notice.status));
  wire::put_u64(out.data() + 8, notice.frames);
  return out;
}

std::optional<Notice> decode_notice(std::span<const std::byte, kNoticeBytes> bytes) {
  const std::uint32_t magic = wire::get_u32(bytes.data());
  const std::uint32_t reason = wire::get_u32(bytes.data() + 4);
  const std::uint64_t frames = wire::get_u64(bytes.data() + 8);
  if (magic == kWelcomeMagic && reason == 0) return Notice{.frames = frames};
  if (magic == kAnswerMagic && reason == 0) return Notice{.kind = Notice::Kind::kAnswer, .frames = frames};
  if (magic != kRefusedMagic || reason > UINT8_MAX) return std::nullopt;
  const auto status = static_cast<Status>(reason);
  if (status != Status::kRemoteAccess && status != Status::kRemoteInvalid) return std::nullopt;
  return Notice{.kind = Notice::Kind::kRefused, .status = status, .frames = frames};
}

void encode(const Frame& frame, std::span<std::byte, kFrameBytes> out) {
  const bool write = frame.kind != WorkKind::kSend;
  const bool imm = frame.kind == WorkKind::kWriteImm;
  wire::put_u32(out.data(), 0);
  out[0] = imm ? kWriteImm : write ? kWrite : kSend;
  wire::put_u32(out.data() + 4, frame.length);
  wire::put_u32(out.data() + 8, write ? frame.rkey : 0);
  wire::put_u32(out.data() + 12, imm ? frame.imm : 0);
  wire::put_u64(out.data() + 16, write ? frame.address : 0);
}

std::optional<Frame> decode_frame(std::span<const std::byte, kFrameBytes> bytes) {
  Frame out{.length = wire::get_u32(bytes.data() + 4),
            .rkey = wire::get_u32(bytes.data() + 8),
            .imm = wire::get_u32(bytes.data() + 12),
            .address = wire::get_u64(bytes.data() + 16)};
  if ((wire::get_u32(bytes.data()) & 0xFFFFFF) != 0) return std::nullopt;
  if (bytes[0] == kWriteImm) {
    out.kind = WorkKind::kWriteImm;
    return out;
  }
  if (out.imm != 0) return std::nullopt;
  if (bytes[0] == kWrite) {
    out.kind = WorkKind::kWrite;
    return out;
  }
  if (bytes[0] != kSend || out.rkey != 0 || out.address != 0) return std::nullopt;
  out.kind = WorkKind::kSend;
  return out;
}

}  // namespace paralet::tcp
