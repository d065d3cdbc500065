// SPDX-License-Identifier: Apache-2.0
// What the `verbs` back end is opened with, and the ports that it can use.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/ip_address.hpp"
#include "base/log.hpp"
#include "base/route_mtu.hpp"

namespace paralet {

struct VerbsOptions {
  IpAddress address;                       ///< of the RoCEv2 GID to use
  std::string device;                      ///< empty: any device that has such a GID
  std::optional<std::uint32_t> gid_index;  ///< another GID of the same port
  std::uint8_t traffic_class = 0;          ///< DSCP and ECN bits
  std::uint8_t service_level = 0;
  std::uint16_t pkey_index = 0;
  /// Local ACK timeout, rounded up to 4.096 us times a power of two (IBTA 9.9.2.1.1). Nothing: chosen so that all
  /// retries together take the retry time.
  std::optional<Nanos> min_timeout;
  Nanos retry_time = 10 * kSecond;  ///< a QP fails when its peer is silent for this long
  /// What the route of a flow takes; tests narrow it.
  std::function<std::optional<std::uint32_t>(const UdpEnd& from, const UdpEnd& to)> ask_route = route_mtu;
  std::uint64_t page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));  ///< of the kernel
  Log log = log_to_standard_error;
};

/// A GID of a port of a device, as `paralet doctor` lists them.
struct VerbsPort {
  std::string device;
  std::uint32_t port = 0;
  bool active = false;
  std::uint32_t path_mtu = 0;  ///< payload bytes
  std::uint32_t gid_index = 0;
  IpAddress address;
  bool dmabuf = false;  ///< its driver and the library can register dma-bufs
};

/// The RoCEv2 GIDs of addresses that are not link-local. Throws DeviceError where libibverbs is absent.
std::vector<VerbsPort> verbs_ports();

}  // namespace paralet
