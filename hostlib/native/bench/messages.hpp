// SPDX-License-Identifier: Apache-2.0
// Messages over devices, through the engine's public interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "engine/device.hpp"
#include "engine/options.hpp"

namespace paralet::bench {

/// A request that may be submitted repeatedly.
std::shared_ptr<Request> prepared(const std::shared_ptr<Connection>& connection, Request::Kind kind,
                                  std::span<std::byte> buffer, std::uint32_t rkey = 0);

/// Takes a back end by its name in PARALET_BACKEND. Throws std::invalid_argument.
void set_back_end(DeviceOptions& options, const std::string& name);

/// Whether it is done or has failed.
bool ended(const Request& request);
/// Throws TransportError when it has failed.
void check_done(const Request& request);
void wait_done(Device& device, const Request& request);

/// Waits for the next connection.
std::shared_ptr<Connection> accept(Device& device, Listener& listener);
/// Throws TransportError when the connection fails.
void wait_open(Device& device, const Connection& connection);

}  // namespace paralet::bench
