// SPDX-License-Identifier: Apache-2.0
#include "base/interfaces.hpp"

#include <ifaddrs.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>

#include "base/errors.hpp"
#include "base/file_descriptor.hpp"
#include "base/limits.hpp"
#include "base/socket_address.hpp"

namespace paralet {

std::vector<Interface> interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) throw DeviceError("cannot list the network interfaces: " + error_text(errno));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  const FileDescriptor query(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!query.valid()) throw DeviceError("cannot list the network interfaces: " + error_text(errno));
  constexpr unsigned kWorking = IFF_UP | IFF_RUNNING;
  std::vector<Interface> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const SocketAddress address(entry->ifa_addr);
    if (address.address().is_link_local()) continue;
    ifreq request{};
    std::strncpy(request.ifr_name, entry->ifa_name, IFNAMSIZ - 1);
    if (ioctl(query.get(), SIOCGIFMTU, &request) != 0) continue;
    found.push_back({.name = entry->ifa_name,
                     .address = address.address(),
                     .mtu_bytes = static_cast<std::uint32_t>(request.ifr_mtu),
                     .up = (entry->ifa_flags & kWorking) == kWorking});
  }
  const auto ipv4 = [](const Interface& each) { return each.address.is_ipv4(); };
  // Clang 14 does not compile libstdc++'s std::ranges::stable_partition.
  std::stable_partition(found.begin(), found.end(), ipv4);
  return found;
}

bool owns(const Interface& interface, const IpAddress& address) {
  const bool loopback = (interface.address.ipv4() >> 24) == 127 && (address.ipv4() >> 24) == 127;
  return interface.address == address || loopback;
}

std::optional<Interface> interface_of(const IpAddress& address) {
  for (const Interface& candidate : interfaces()) {
    if (owns(candidate, address)) return candidate;
  }
  return std::nullopt;
}

std::optional<double> nic_rate_bps(const std::string& interface, const std::filesystem::path& root) {
  std::error_code error;
  if (!std::filesystem::exists(root / interface / "device", error)) return std::nullopt;
  std::ifstream speed(root / interface / "speed");
  double megabits = 0;
  if (!(speed >> megabits) || megabits <= 0) return std::nullopt;  // -1 without a carrier
  return 1e6 * megabits;
}

}  // namespace paralet
