// SPDX-License-Identifier: Apache-2.0
// How kernels refuse work.
#pragma once

#include <string>

namespace paralet::cpu_device {

// Thrown for work that cannot run; run_block makes it a BlockResult.
struct NotSupported {
  std::string reason;  // one sentence
};

}  // namespace paralet::cpu_device
