// SPDX-License-Identifier: Apache-2.0
#include "engine/context.hpp"

#include <cerrno>
#include <cstring>
#include <string>

#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "base/limits.hpp"
#include "base/random.hpp"

namespace paralet {

Context::Context(const DeviceOptions& given, const Backend& backend) : options(given) {
  if (polling->wake_fd() < 0) throw DeviceError("cannot watch sockets: " + error_text(errno));
  const std::uint32_t largest = backend.max_path_mtu();
  path_mtu = options.path_mtu.value_or(largest);
  if (path_mtu > largest) {
    throw DeviceError("path MTU " + std::to_string(path_mtu) + " does not fit the link of " +
                      format_address(options.address) + ": the largest is " + std::to_string(largest));
  }
  if (backend.members() > 1 && options.policy.lanes < backend.members()) {
    throw DeviceError("a fused device needs a lane for every member");
  }
  for (unsigned i = 0; i < backend.members(); ++i) {
    const IpAddress& address = own_address(i);
    nics.push_back({.interface = interface_of(address).value_or(Interface{}).name,
                    .address = address,
                    .udp_port = backend.member(i).udp_port(),
                    .transport = backend.transport()});
  }
  random_bytes(guid);
}

}  // namespace paralet
