// SPDX-License-Identifier: Apache-2.0
#include "base/ip_address.hpp"

#include <arpa/inet.h>

namespace paralet {

std::optional<IpAddress> parse_address(const std::string& text) {
  in_addr ipv4{};
  if (inet_pton(AF_INET, text.c_str(), &ipv4) == 1) return IpAddress(ntohl(ipv4.s_addr));
  IpAddress::Bytes bytes{};
  if (inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1) return IpAddress(bytes);
  return std::nullopt;
}

std::string format_address(const IpAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.is_ipv4()) {
    inet_ntop(AF_INET, &address.bytes()[12], text.data(), text.size());
  } else {
    inet_ntop(AF_INET6, address.bytes().data(), text.data(), text.size());
  }
  return text.data();
}

std::string format_endpoint(const IpAddress& address, std::uint16_t port) {
  const std::string text = format_address(address);
  return (address.is_ipv4() ? text : "[" + text + "]") + ":" + std::to_string(port);
}

}  // namespace paralet
