// SPDX-License-Identifier: Apache-2.0
// Makes the path policy of a device. No other file of the engine knows the implementations of `PathPolicy`.
#pragma once

#include <functional>
#include <memory>

#include "backend/backend.hpp"
#include "engine/options.hpp"
#include "paths/path_policy.hpp"
#include "wire/peer_name.hpp"

namespace paralet {

/// A policy that needs no path service; for kController its fallback, ECMP. Throws DeviceError for invalid options.
std::unique_ptr<PathPolicy> make_policy(const PolicyOptions& options);

/// The policy of the device that peers know as `device`, by `transport`. `wake` makes the data path look for news; any
/// thread may call it. Throws DeviceError for invalid options.
std::unique_ptr<PathPolicy> open_policy(const DeviceOptions& options, PeerName device, Transport transport,
                                        std::function<void()> wake);

}  // namespace paralet
