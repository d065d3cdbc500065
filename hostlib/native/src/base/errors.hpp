// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

namespace paralet {

/// A transfer or a connection failed.
struct TransportError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// A device cannot be opened, or cannot do what was requested.
struct DeviceError : TransportError {
  using TransportError::TransportError;
};
/// The peer closed the connection or is gone.
struct ConnectionClosed : TransportError {
  using TransportError::TransportError;
};

}  // namespace paralet
