// SPDX-License-Identifier: Apache-2.0
#include "nccl_variables.hpp"

#include <array>

namespace paralet::plugin {

std::span<const NcclVariable> nccl_variables() {
  static constexpr std::array kVariables = {
#define NCCL_VARIABLE(name, effect, here) NcclVariable{#name, NcclEffect::effect, here},
#include "nccl_variables.inc"
#undef NCCL_VARIABLE
  };
  return kVariables;
}

}  // namespace paralet::plugin
