// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

#include "paralet_nccl_net.h"

namespace paralet::plugin {

/// A call failed: the sentence for the log, and the result for NCCL.
struct PluginError : std::runtime_error {
  PluginError(ncclResult_t why, const std::string& sentence) : std::runtime_error(sentence), result(why) {}
  ncclResult_t result;
};

/// Throws the error of a user's mistake in a parameter.
[[noreturn]] inline void refuse(const std::string& sentence) { throw PluginError(ncclInvalidUsage, sentence); }

}  // namespace paralet::plugin
