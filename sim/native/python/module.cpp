// SPDX-License-Identifier: Apache-2.0
// sim._native: the native cores of sim.fluid and sim.packet. They are one extension because what each extension needs
// of pybind11 takes longer to compile than either binding.
#include "bindings.hpp"

PYBIND11_MODULE(_native, module) {
  module.doc() = "The native cores of sim.fluid and sim.packet.";
  paralet::fluid::bind(module);
  paralet::packet::bind(module);
}
