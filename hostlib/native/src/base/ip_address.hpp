// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>

namespace paralet {

/// An IPv4 or IPv6 address. An IPv4 address is held as the IPv4-mapped IPv6 address ::ffff:a.b.c.d (RFC 4291, section
/// 2.5.5.2), so the bytes of either are those of its RoCEv2 GID (IBTA annex A17.4.4). Without a value it is ::.
class IpAddress {
 public:
  using Bytes = std::array<std::uint8_t, 16>;

  constexpr IpAddress() = default;
  /// In host byte order.
  // NOLINTNEXTLINE(google-explicit-constructor): a number is an IPv4 address
  constexpr IpAddress(std::uint32_t ipv4)
      : bytes_{0,
               0,
               0,
               0,
               0,
               0,
               0,
               0,
               0,
               0,
               0xFF,
               0xFF,
               static_cast<std::uint8_t>(ipv4 >> 24),
               static_cast<std::uint8_t>(ipv4 >> 16),
               static_cast<std::uint8_t>(ipv4 >> 8),
               static_cast<std::uint8_t>(ipv4)} {}
  /// In network byte order.
  constexpr explicit IpAddress(const Bytes& bytes) : bytes_(bytes) {}

  /// In network byte order.
  [[nodiscard]] constexpr const Bytes& bytes() const { return bytes_; }
  [[nodiscard]] constexpr bool is_ipv4() const {
    return std::all_of(bytes_.begin(), bytes_.begin() + 10, [](std::uint8_t byte) { return byte == 0; }) &&
           bytes_[10] == 0xFF && bytes_[11] == 0xFF;
  }
  /// In host byte order; 0 of an IPv6 address.
  [[nodiscard]] constexpr std::uint32_t ipv4() const {
    if (!is_ipv4()) return 0;
    return (std::uint32_t{bytes_[12]} << 24) | (std::uint32_t{bytes_[13]} << 16) | (std::uint32_t{bytes_[14]} << 8) |
           bytes_[15];
  }
  /// Of one link (fe80::/10): such an address needs a scope, which paralet does not carry.
  [[nodiscard]] constexpr bool is_link_local() const { return bytes_[0] == 0xFE && (bytes_[1] & 0xC0) == 0x80; }

  auto operator<=>(const IpAddress&) const = default;  // NOLINT(modernize-use-nullptr): of what the compiler writes

 private:
  Bytes bytes_{};
};

/// "10.0.0.1" or "fd00::1"; nullopt when the text is neither.
std::optional<IpAddress> parse_address(const std::string& text);
std::string format_address(const IpAddress& address);
/// "10.0.0.1:4791" or "[fd00::1]:4791".
std::string format_endpoint(const IpAddress& address, std::uint16_t port);

}  // namespace paralet

template <>
struct std::hash<paralet::IpAddress> {
  std::size_t operator()(const paralet::IpAddress& address) const noexcept {
    std::uint64_t high = 0;
    std::uint64_t low = 0;
    std::memcpy(&high, address.bytes().data(), sizeof high);
    std::memcpy(&low, address.bytes().data() + sizeof high, sizeof low);
    return std::hash<std::uint64_t>{}(high * 0x9E3779B97F4A7C15 ^ low);
  }
};
