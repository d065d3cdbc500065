// SPDX-License-Identifier: Apache-2.0
#include "base/interfaces.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

#include "base/file_descriptor.hpp"

namespace paralet {

std::vector<Interface> interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) throw std::system_error(errno, std::generic_category(), "getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  const FileDescriptor query(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  constexpr unsigned kWorking = IFF_UP | IFF_RUNNING;
  std::vector<Interface> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    sockaddr_in address{};
    std::memcpy(&address, entry->ifa_addr, sizeof address);
    ifreq request{};
    std::strncpy(request.ifr_name, entry->ifa_name, IFNAMSIZ - 1);
    if (ioctl(query.get(), SIOCGIFMTU, &request) != 0) continue;
    found.push_back({.name = entry->ifa_name,
                     .address = ntohl(address.sin_addr.s_addr),
                     .mtu_bytes = static_cast<std::uint32_t>(request.ifr_mtu),
                     .up = (entry->ifa_flags & kWorking) == kWorking});
  }
  return found;
}

bool owns(const Interface& interface, std::uint32_t address) {
  const bool loopback = (interface.address >> 24) == 127 && (address >> 24) == 127;
  return interface.address == address || loopback;
}

std::optional<Interface> interface_of(std::uint32_t address) {
  for (const Interface& candidate : interfaces()) {
    if (owns(candidate, address)) return candidate;
  }
  return std::nullopt;
}

std::optional<std::uint32_t> parse_ipv4(const std::string& text) {
  in_addr address{};
  if (inet_pton(AF_INET, text.c_str(), &address) != 1) return std::nullopt;
  return ntohl(address.s_addr);
}

std::string format_ipv4(std::uint32_t address) {
  const in_addr network{.s_addr = htonl(address)};
  std::array<char, INET_ADDRSTRLEN> text{};
  inet_ntop(AF_INET, &network, text.data(), text.size());
  return text.data();
}

}  // namespace paralet
