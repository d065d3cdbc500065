// SPDX-License-Identifier: Apache-2.0
// sdn._native: the native cores of sdn.planners and sdn.path_service. They are one extension because what each
// extension needs of pybind11 takes longer to compile than either binding.
#include "bindings.hpp"

PYBIND11_MODULE(_native, module) {
  module.doc() = "The native cores of sdn.planners and sdn.path_service.";
  paralet::planners::bindings::bind(module);
  paralet::renewals::bind(module);
}
