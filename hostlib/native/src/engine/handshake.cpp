// SPDX-License-Identifier: Apache-2.0
#include "engine/handshake.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/printable.hpp"
#include "wire/wire.hpp"

namespace paralet::handshake {
namespace {

constexpr std::uint32_t kHandleMagic = 0x504C4554;  // "PLET"
constexpr std::uint32_t kHelloMagic = 0x504C4831;   // "PLH1"
constexpr std::size_t kMaxReasonBytes = 512;

enum class Type : std::uint8_t {
  kHello = 1,
  kWelcome,
  kRefuse,
  kConnect,
  kAccept,
  kReject,
  kClose,
  kClosed,
  kOverrun,
  kNewQp,
  kQpReady,
  kQpDrained,
  kQpStopped,
  kJoin,
  kMemberDown,
  kNumbered,
  kSignOfLife,
};
/// What the listener of a handle understands.
constexpr std::uint8_t kSignsOfLifeBit = 1;

bool is_printable(char c) { return c >= ' ' && c <= '~'; }

class Writer {
 public:
  explicit Writer(std::vector<std::byte>& out) : out_(out) {}
  void u8(std::uint8_t v) { out_.push_back(static_cast<std::byte>(v)); }
  void u16(std::uint16_t v) {
    u8(static_cast<std::uint8_t>(v >> 8));
    u8(static_cast<std::uint8_t>(v));
  }
  void u32(std::uint32_t v) {
    u16(static_cast<std::uint16_t>(v >> 16));
    u16(static_cast<std::uint16_t>(v));
  }
  void u64(std::uint64_t v) {
    u32(static_cast<std::uint32_t>(v >> 32));
    u32(static_cast<std::uint32_t>(v));
  }
  void bytes(std::span<const std::byte> b) { out_.insert(out_.end(), b.begin(), b.end()); }
  void text(const std::string& s) {
    const std::string shown = printable(s).substr(0, kMaxReasonBytes);
    u16(static_cast<std::uint16_t>(shown.size()));
    for (const char c : shown) u8(static_cast<std::uint8_t>(c));
  }

 private:
  std::vector<std::byte>& out_;
};

/// A read past the end returns zeros and makes ok() false.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) : in_(in) {}
  std::uint8_t u8() {
    const std::byte* p = take(1);
    return p == nullptr ? 0 : std::to_integer<std::uint8_t>(*p);
  }
  std::uint16_t u16() {
    const std::byte* p = take(2);
    return p == nullptr ? 0 : wire::get_u16(p);
  }
  std::uint32_t u32() {
    const std::byte* p = take(4);
    return p == nullptr ? 0 : wire::get_u32(p);
  }
  std::uint64_t u64() {
    const std::byte* p = take(8);
    return p == nullptr ? 0 : wire::get_u64(p);
  }
  void bytes(std::span<std::byte> out) {
    if (const std::byte* p = take(out.size())) std::memcpy(out.data(), p, out.size());
  }
  std::string text() {
    const std::size_t n = u16();
    if (n > kMaxReasonBytes) ok_ = false;
    const std::byte* p = ok_ ? take(n) : nullptr;
    std::string out(reinterpret_cast<const char*>(p), p == nullptr ? 0 : n);
    if (!std::ranges::all_of(out, is_printable)) ok_ = false;  // the text goes into logs and exceptions unchanged
    return out;
  }
  /// Every read succeeded and no bytes are left.
  [[nodiscard]] bool complete() const { return ok_ && in_.empty(); }
  [[nodiscard]] bool ok() const { return ok_; }
  void spoil() { ok_ = false; }
  std::vector<std::byte> rest() {
    const std::span<const std::byte> all = std::exchange(in_, {});
    return {all.begin(), all.end()};
  }

 private:
  const std::byte* take(std::size_t n) {
    if (n > in_.size()) {
      ok_ = false;
      return nullptr;
    }
    const std::byte* p = in_.data();
    in_ = in_.subspan(n);
    return p;
  }
  std::span<const std::byte> in_;
  bool ok_ = true;
};

void write(Writer& w, const Ece& ece) {
  w.u32(ece.vendor_id);
  w.u32(ece.options);
  w.u32(ece.comp_mask);
}

Ece read_ece(Reader& r) {
  Ece ece;
  ece.vendor_id = r.u32();
  ece.options = r.u32();
  ece.comp_mask = r.u32();
  return ece;
}

/// Spoils the reader when queue pairs cannot have it.
std::uint32_t read_path_mtu(Reader& r) {
  const std::uint32_t mtu = r.u32();
  if (mtu != 256 && mtu != 512 && mtu != 1024 && mtu != 2048 && mtu != 4096) r.spoil();
  return mtu;
}

void write(Writer& w, const QpIdentity& qp) {
  w.u32(qp.qpn);
  w.u32(qp.first_psn);
}

QpIdentity read_qp(Reader& r) {
  QpIdentity qp;
  qp.qpn = r.u32();
  qp.first_psn = r.u32();
  if (member_of(qp.qpn) >= kMaxMembers) r.spoil();
  return qp;
}

/// A PSN has 24 bits. Over TCP there is a token of 32 in its place.
void check_psn(Reader& r, const QpIdentity& qp, const Ece& ece) {
  if (qp.first_psn > 0xFFFFFF && transport_of(ece) == Transport::kRoce) r.spoil();
}

void write_address(Writer& w, const IpAddress& address) {
  for (const std::uint8_t byte : address.bytes()) w.u8(byte);
}

IpAddress read_address(Reader& r) {
  IpAddress::Bytes bytes{};
  for (std::uint8_t& byte : bytes) byte = r.u8();
  return IpAddress(bytes);
}

/// Spoils the reader when the address is an IPv4 one: that has a field of its own.
IpAddress read_ipv6(Reader& r) {
  const IpAddress out = read_address(r);
  if (out.is_ipv4()) r.spoil();
  return out;
}

void write_ports(Writer& w, const std::vector<std::uint16_t>& ports) {
  for (const std::uint16_t port : ports) w.u16(port);
}

std::vector<std::uint16_t> read_ports(Reader& r, std::size_t count) {
  std::vector<std::uint16_t> out;
  for (std::size_t i = 0; i < count && r.ok(); ++i) {
    out.push_back(r.u16());
    if (out.back() == 0) r.spoil();
  }
  return out;
}

void write(Writer& w, const Endpoint& e) {
  w.bytes(e.device);
  w.u32(e.address.ipv4());
  w.u16(e.udp_port);
  w.u32(e.path_mtu);
  w.u16(static_cast<std::uint16_t>(e.qps.size()));
  for (const QpIdentity& qp : e.qps) write(w, qp);
  if (e.max_ip_id == kDefaultMaxIpId && e.ece == Ece{} && e.address.is_ipv4() && e.further.empty() &&
      e.further_ports.empty()) {
    return;
  }
  w.u16(e.max_ip_id);
  write(w, e.ece);
  if (!e.address.is_ipv4()) write_address(w, e.address);
  if (e.further.empty() && e.further_ports.empty()) return;
  w.bytes(e.join);
  w.u8(static_cast<std::uint8_t>(e.further.size()));
  for (const Endpoint::Member& member : e.further) {
    write_address(w, member.address);
    w.u16(member.udp_port);
    w.u16(member.max_ip_id);
    write(w, member.ece);
  }
  if (e.further_ports.empty()) return;
  w.u8(static_cast<std::uint8_t>(e.further_ports.size()));
  write_ports(w, e.further_ports);
  for (const Endpoint::Member& member : e.further) write_ports(w, member.further_ports);
}

/// Members, and the ports of shards. One of the two is not empty.
void read_members(Reader& r, Endpoint& e) {
  r.bytes(e.join);
  const std::size_t count = r.u8();
  if (count >= kMaxMembers) r.spoil();
  for (std::size_t i = 0; i < count && r.ok(); ++i) {
    Endpoint::Member member;
    member.address = read_address(r);
    member.udp_port = r.u16();
    member.max_ip_id = r.u16();
    member.ece = read_ece(r);
    if (member.udp_port == 0) r.spoil();
    e.further.push_back(member);
  }
  if (count > 0 && r.complete()) return;
  const std::size_t ports = r.u8();
  if (ports == 0 || ports >= kMaxShards) r.spoil();
  e.further_ports = read_ports(r, ports);
  for (Endpoint::Member& member : e.further) member.further_ports = read_ports(r, ports);
}

Endpoint read_endpoint(Reader& r) {
  Endpoint e;
  r.bytes(e.device);
  const std::uint32_t ipv4 = r.u32();
  e.address = ipv4;
  e.udp_port = r.u16();
  e.path_mtu = read_path_mtu(r);
  const std::size_t count = r.u16();
  if (count == 0 || count > kMaxQps || e.udp_port == 0 || !r.ok()) {
    r.spoil();
    return e;
  }
  for (std::size_t i = 0; i < count && r.ok(); ++i) e.qps.push_back(read_qp(r));
  const auto check_members = [&] {
    if (std::ranges::any_of(e.qps, [&](const QpIdentity& qp) { return member_of(qp.qpn) > e.further.size(); }))
      r.spoil();
  };
  if (!r.complete() || ipv4 == 0) {  // the rest is optional: absent when it has the default values
    e.max_ip_id = r.u16();
    e.ece = read_ece(r);
    if (ipv4 == 0) e.address = read_ipv6(r);
    if (r.ok() && !r.complete()) read_members(r, e);
  }
  check_members();
  for (const QpIdentity& qp : e.qps) check_psn(r, qp, e.ece);
  return e;
}

struct BodyWriter {
  Writer& w;
  void operator()(const Hello& f) const {
    w.u8(static_cast<std::uint8_t>(Type::kHello));
    w.u32(kHelloMagic);
    w.u16(kVersion);
    w.u32(f.listener);
    w.bytes(f.token);
    write(w, f.endpoint);
  }
  void operator()(const Welcome& f) const {
    w.u8(static_cast<std::uint8_t>(Type::kWelcome));
    w.u16(kVersion);
    write(w, f.endpoint);
  }
  void operator()(const Refuse& f) const {
    w.u8(static_cast<std::uint8_t>(Type::kRefuse));
    w.text(f.reason);
  }
  void operator()(const Connect& f) const {
    w.u8(static_cast<std::uint8_t>(Type::kConnect));
    w.u32(f.connection);
    w.u32(f.listener);
    w.bytes(f.token);
  }
  void operator()(const Accept& f) const {
    w.u8(static_cast<std::uint8_t>(Type::kAccept));
    w.u32(f.connection);
    w.u32(f.peer_connection);
  }
  void operator()(const Reject& f) const {
    w.u8(static_cast<std::uint8_t>(Type::kReject));
    w.u32(f.connection);
    w.text(f.reason);
  }
  void operator()(const Close& f) const {
    w.u8(static_cast<std::uint8_t>(Type::kClose));
    w.u32(f.connection);
  }
  void operator()(const Closed& f) const {
    w.u8(static_cast<std::uint8_t>(Type::kClosed));
    w.u32(f.connection);
  }
  void operator()(const Overrun& f) const {
    w.u8(static_cast<std::uint8_t>(Type::kOverrun));
    w.u32(f.connection);
    w.u16(f.slot);
    w.u64(f.message_bytes);
  }
  void operator()(const NewQp& f) const {
    w.u8(static_cast<std::uint8_t>(Type::kNewQp));
    w.u16(f.lane);
    write(w, f.qp);
    write(w, f.ece);
    if (f.path_mtu) w.u32(*f.path_mtu);
  }
  void operator()(const QpReady& f) const {
    w.u8(static_cast<std::uint8_t>(Type::kQpReady));
    w.u16(f.lane);
  }
  void operator()(const QpDrained& f) const {
    w.u8(static_cast<std::uint8_t>(Type::kQpDrained));
    w.u16(f.lane);
  }
  void operator()(const QpStopped& f) const {
    w.u8(static_cast<std::uint8_t>(Type::kQpStopped));
    w.u16(f.lane);
    w.u32(f.arrived);
  }
  void operator()(const Join& f) const {
    w.u8(static_cast<std::uint8_t>(Type::kJoin));
    w.bytes(f.token);
    w.u8(f.member);
  }
  void operator()(const MemberDown& f) const {
    w.u8(static_cast<std::uint8_t>(Type::kMemberDown));
    w.u8(f.member);
  }
  void operator()(const Numbered& f) const {
    w.u8(static_cast<std::uint8_t>(Type::kNumbered));
    w.u32(f.number);
    w.u32(f.acknowledged);
    w.bytes(f.body);
  }
  void operator()(const SignOfLife& f) const {
    w.u8(static_cast<std::uint8_t>(Type::kSignOfLife));
    w.u8(f.wants_answer ? 1 : 0);
  }
};

}  // namespace

std::array<std::byte, kHandleBytes> encode(const Handle& handle) {
  std::vector<std::byte> out;
  out.reserve(kHandleBytes);
  Writer w(out);
  w.u32(kHandleMagic);
  const bool ipv4 = handle.address.is_ipv4();
  w.u16(ipv4 ? kVersion : kIpv6HandleVersion);
  w.u16(handle.tcp_port);
  w.u32(handle.address.ipv4());
  w.bytes(handle.device);
  w.u32(handle.listener);
  w.bytes(handle.token);
  if (!ipv4) write_address(w, handle.address);
  w.u8(static_cast<std::uint8_t>(handle.further.size()));
  for (const Handle::Member& member : handle.further) {
    w.u16(member.tcp_port);
    write_address(w, member.address);
  }
  w.u8(handle.signs_of_life ? kSignsOfLifeBit : 0);
  std::array<std::byte, kHandleBytes> padded{};
  std::copy(out.begin(), out.end(), padded.begin());
  return padded;
}

std::optional<Handle> decode_handle(std::span<const std::byte> bytes) {
  if (bytes.size() != kHandleBytes) return std::nullopt;
  Reader r(bytes);
  Handle handle;
  if (r.u32() != kHandleMagic) return std::nullopt;
  const std::uint16_t version = r.u16();
  if (version != kVersion && version != kIpv6HandleVersion) return std::nullopt;
  handle.tcp_port = r.u16();
  handle.address = r.u32();
  r.bytes(handle.device);
  handle.listener = r.u32();
  r.bytes(handle.token);
  if (version == kIpv6HandleVersion) {
    if (handle.address != IpAddress(0U)) return std::nullopt;
    handle.address = read_ipv6(r);
  }
  const std::size_t further = r.u8();
  if (further >= kMaxMembers) return std::nullopt;
  for (std::size_t i = 0; i < further; ++i) {
    Handle::Member member;
    member.tcp_port = r.u16();
    member.address = read_address(r);
    handle.further.push_back(member);
  }
  handle.signs_of_life = (r.u8() & kSignsOfLifeBit) != 0;  // later releases may have more
  return r.ok() ? std::optional(handle) : std::nullopt;
}

std::vector<std::byte> encode(const Frame& frame) {
  std::vector<std::byte> out(4);
  Writer w(out);
  std::visit(BodyWriter{w}, frame);
  wire::put_u32(out.data(), static_cast<std::uint32_t>(out.size() - 4));
  return out;
}

std::optional<Frame> decode(std::span<const std::byte> body) {
  Reader r(body);
  std::optional<Frame> frame;
  switch (static_cast<Type>(r.u8())) {
    case Type::kHello: {
      Hello f;
      if (r.u32() != kHelloMagic || r.u16() != kVersion) return std::nullopt;
      f.listener = r.u32();
      r.bytes(f.token);
      f.endpoint = read_endpoint(r);
      frame = std::move(f);
      break;
    }
    case Type::kWelcome: {
      if (r.u16() != kVersion) return std::nullopt;
      frame = Welcome{read_endpoint(r)};
      break;
    }
    case Type::kRefuse:
      frame = Refuse{r.text()};
      break;
    case Type::kConnect: {
      Connect f;
      f.connection = r.u32();
      f.listener = r.u32();
      r.bytes(f.token);
      frame = f;
      break;
    }
    case Type::kAccept: {
      Accept f;
      f.connection = r.u32();
      f.peer_connection = r.u32();
      frame = f;
      break;
    }
    case Type::kReject: {
      Reject f;
      f.connection = r.u32();
      f.reason = r.text();
      frame = std::move(f);
      break;
    }
    case Type::kClose:
      frame = Close{r.u32()};
      break;
    case Type::kClosed:
      frame = Closed{r.u32()};
      break;
    case Type::kOverrun: {
      Overrun f;
      f.connection = r.u32();
      f.slot = r.u16();
      f.message_bytes = r.u64();
      frame = f;
      break;
    }
    case Type::kNewQp: {
      NewQp f;
      f.lane = r.u16();
      f.qp = read_qp(r);
      f.ece = read_ece(r);
      check_psn(r, f.qp, f.ece);
      if (r.ok() && !r.complete()) f.path_mtu = read_path_mtu(r);
      frame = f;
      break;
    }
    case Type::kQpReady:
      frame = QpReady{r.u16()};
      break;
    case Type::kQpDrained:
      frame = QpDrained{r.u16()};
      break;
    case Type::kQpStopped: {
      QpStopped f;
      f.lane = r.u16();
      f.arrived = r.u32();
      frame = f;
      break;
    }
    case Type::kJoin: {
      Join f;
      r.bytes(f.token);
      f.member = r.u8();
      if (f.member >= kMaxMembers) r.spoil();
      frame = f;
      break;
    }
    case Type::kMemberDown: {
      const MemberDown f{r.u8()};
      if (f.member >= kMaxMembers) r.spoil();
      frame = f;
      break;
    }
    case Type::kSignOfLife: {
      const std::uint8_t wants_answer = r.u8();
      if (wants_answer > 1) r.spoil();
      frame = SignOfLife{wants_answer == 1};
      break;
    }
    case Type::kNumbered: {
      Numbered f;
      f.number = r.u32();
      f.acknowledged = r.u32();
      f.body = r.rest();
      frame = std::move(f);
      break;
    }
    default:
      return std::nullopt;
  }
  return r.complete() ? frame : std::nullopt;
}

}  // namespace paralet::handshake
