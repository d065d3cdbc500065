// SPDX-License-Identifier: Apache-2.0
#include "networks.hpp"

#include <arpa/inet.h>

#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>

namespace paralet::pin {
namespace {

std::optional<IpAddress> parse(std::string_view text) {
  std::array<char, INET6_ADDRSTRLEN> name{};
  if (text.empty() || text.size() >= name.size()) return std::nullopt;
  std::memcpy(name.data(), text.data(), text.size());
  in_addr v4{};
  if (::inet_pton(AF_INET, name.data(), &v4) == 1) return IpAddress(ntohl(v4.s_addr));
  IpAddress::Bytes v6{};
  if (::inet_pton(AF_INET6, name.data(), v6.data()) == 1) return IpAddress(v6);
  return std::nullopt;
}

bool begins_with(const IpAddress& address, const IpAddress& prefix, unsigned bits) {
  const unsigned whole = bits / 8;
  if (std::memcmp(address.bytes().data(), prefix.bytes().data(), whole) != 0) return false;
  if (bits % 8 == 0) return true;
  const auto differing = static_cast<unsigned>(address.bytes()[whole] ^ prefix.bytes()[whole]);
  return differing >> (8 - bits % 8) == 0;
}

bool is_of_many_or_none(const IpAddress& address) {
  if (address.is_ipv4()) {
    const std::uint32_t v4 = address.ipv4();
    return v4 >> 24 == 127 || v4 >> 24 == 0 || v4 >> 28 >= 14 || v4 >> 16 == 0xA9FE;
  }
  const auto& bytes = address.bytes();
  IpAddress::Bytes one{};
  one[15] = 1;
  return bytes[0] == 0xFF || address.is_link_local() || address == IpAddress() || bytes == one;
}

}  // namespace

Networks::Networks(std::string_view text) {
  while (!text.empty() && count_ < kMost) {
    const std::string_view one = text.substr(0, text.find(','));
    text.remove_prefix(std::min(one.size() + 1, text.size()));
    const std::size_t slash = one.find('/');
    if (slash == std::string_view::npos) continue;
    const auto address = parse(one.substr(0, slash));
    const std::string_view length = one.substr(slash + 1);
    unsigned bits = 0;
    const auto read = std::from_chars(length.data(), length.data() + length.size(), bits);
    if (!address || read.ec != std::errc() || read.ptr != length.data() + length.size()) continue;
    if (address->is_ipv4()) bits += 96;
    if (bits <= 128) prefixes_[count_++] = {.address = *address, .bits = bits};
  }
}

bool Networks::has(const IpAddress& address) const {
  if (count_ == 0) return !is_of_many_or_none(address);
  for (std::size_t i = 0; i < count_; ++i) {
    if (begins_with(address, prefixes_[i].address, prefixes_[i].bits)) return true;
  }
  return false;
}

}  // namespace paralet::pin
