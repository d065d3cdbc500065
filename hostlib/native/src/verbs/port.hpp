// SPDX-License-Identifier: Apache-2.0
// RDMA devices, their ports and their GIDs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "backend/backend.hpp"
#include "base/ip_address.hpp"
#include "verbs/verbs_library.hpp"
#include "verbs/verbs_options.hpp"

namespace paralet::verbs {

/// An open device, with the port and the GID that packets leave by.
struct OpenPort {
  std::string device;
  ContextHandle context;
  std::uint8_t number = 0;
  std::uint32_t gid_index = 0;
  ibv_gid gid{};
};

/// Opens the device whose port has the address in `options`. Throws DeviceError when there is none.
OpenPort open_port(const VerbsOptions& options);

/// The RoCEv2 GID of an address (IBTA annex A17.4.4).
ibv_gid gid_of(const IpAddress& address);

/// Payload bytes of a path MTU code, and back.
std::uint32_t bytes_of(ibv_mtu mtu);
ibv_mtu mtu_of(std::uint32_t bytes);

struct PortAttributes {
  ibv_port_attr common{};
  /// Speed of a lane. Where the library knows it, this is active_speed_ex: from XDR on, codes do not fit the 8 bits of
  /// active_speed.
  std::uint32_t speed = 0;
};
/// Attributes of a port, as much of them as the library knows. Nothing when it cannot be queried; errno tells why.
std::optional<PortAttributes> query_port(ibv_context* context, std::uint8_t number);

/// Bits per second of the data of a link, by the codes of ibv_port_attr: active_width lanes of active_speed or
/// active_speed_ex (IBTA volume 1, PortInfo; ibv_query_port(3)). 0 for codes that are not known.
double link_rate_bps(std::uint8_t width, std::uint32_t speed);

/// Throws DeviceError: `what`, and the text of `error` (an errno).
[[noreturn]] void fail(const std::string& what, int error);

}  // namespace paralet::verbs
