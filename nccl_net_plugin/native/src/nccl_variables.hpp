// SPDX-License-Identifier: Apache-2.0
// What the plugin does with NCCL's variables (nccl_variables.inc).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace paralet::plugin {

enum class NcclEffect : std::uint8_t {
  kTaken,         ///< its value stands in for a parameter that is not set
  kTakenByVerbs,  ///< the same with the back end `verbs`; with `soft` it has no effect
  kRead,          ///< the plugin reads it
  kOwn,           ///< NCCL's own: has its effect with any net plugin
  kNone,          ///< only NCCL's own network transports read it, or no part of NCCL any more
};

struct NcclVariable {
  const char* name;
  NcclEffect effect;
  std::string_view here;  ///< what has its effect here: a parameter, or another variable of NCCL; empty: nothing
};

/// By name.
std::span<const NcclVariable> nccl_variables();

}  // namespace paralet::plugin
