// SPDX-License-Identifier: Apache-2.0
// What the parts of hostlib._engine share.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>

#include "base/clock.hpp"
#include "base/errors.hpp"
#include "base/ip_address.hpp"
#include "engine/device.hpp"
#include "engine/options.hpp"
#include "engine/request.hpp"

namespace paralet {

inline constexpr Nanos kSignalCheck = 100 * kMillisecond;  ///< how soon Ctrl-C is noticed

inline std::optional<Nanos> to_nanos(std::optional<double> seconds) {
  if (!seconds) return std::nullopt;
  if (!(*seconds >= 0)) throw pybind11::value_error("timeout_s must not be negative");
  return from_seconds(*seconds);
}

[[noreturn]] inline void raise(Failure failure, const std::string& error) {
  switch (failure) {
    case Failure::kClosed:
      throw ConnectionClosed(error);
    case Failure::kDevice:
      throw DeviceError(error);
    default:
      throw TransportError(error);
  }
}

[[noreturn]] inline void raise_timeout(const std::string& what) {
  PyErr_SetString(PyExc_TimeoutError, what.c_str());
  throw pybind11::error_already_set();
}

/// Throws ValueError when the text is no IP address.
IpAddress address_of(const std::string& text);
/// Options by name (engine/options.hpp). Throws ValueError, and TypeError for unknown names and wrong types.
DeviceOptions device_options(const std::string& address, const pybind11::dict& given);
/// The counters of a device, by name.
pybind11::dict counters_of(Device& device);

/// Adds the table of counters.
void bind_counters(pybind11::module_& m);
/// Adds Group and Operation to the module.
void bind_collectives(pybind11::module_& m);
/// Adds the table of options and what reads PARALET_* variables.
void bind_settings(pybind11::module_& m);
/// Adds Prober to the module.
void bind_prober(pybind11::module_& m);

}  // namespace paralet
