// SPDX-License-Identifier: Apache-2.0
// What the parts of hostlib._engine share.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>

#include "base/clock.hpp"
#include "base/errors.hpp"
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

/// Adds Group and Operation to the module.
void bind_collectives(pybind11::module_& m);

}  // namespace paralet
