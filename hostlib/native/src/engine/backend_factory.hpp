// SPDX-License-Identifier: Apache-2.0
// Opens the back end of a device. No other file of the engine knows the implementations of `Backend`.
#pragma once

#include <memory>

#include "backend/backend.hpp"
#include "engine/options.hpp"

namespace paralet {

/// Queueing delay that congestion control aims at: the option, or a value that depends on the line rate.
Nanos target_queue(const DeviceOptions& options);

/// Opens the back end that the options name. Throws DeviceError.
std::unique_ptr<Backend> make_backend(const DeviceOptions& options);

}  // namespace paralet
