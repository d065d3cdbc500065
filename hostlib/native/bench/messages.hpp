// SPDX-License-Identifier: Apache-2.0
// Messages over devices, as callers of the engine move them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/device.hpp"

namespace paralet::bench {

/// A request that may be submitted again and again.
std::shared_ptr<Request> prepared(const std::shared_ptr<Connection>& connection, Request::Kind kind,
                                  std::span<std::byte> buffer, std::uint32_t rkey = 0);

/// Whether it is over, well or not.
bool ended(const Request& request);
/// Throws TransportError when it has failed.
void check_done(const Request& request);
void wait_done(Device& device, const Request& request);

/// The next connection that arrives.
std::shared_ptr<Connection> accept(Device& device, Listener& listener);
/// Throws TransportError when it cannot be had.
void wait_open(Device& device, const Connection& connection);

}  // namespace paralet::bench
