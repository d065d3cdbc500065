// SPDX-License-Identifier: Apache-2.0
// What collectives are made of: operations on one chunk, which a protocol carries out.
#pragma once

#include <cstddef>
#include <vector>

namespace paralet::cpu_device {

// One chunk: reduce own data and what every peer sends, keep the result, send it to every peer. Any part may be absent.
struct Operation {
  const std::byte* source = nullptr;  // own data
  bool receive = false;
  std::byte* target = nullptr;  // where the result is kept
  bool send = false;
  std::size_t count = 0;  // elements
  bool post = false;      // the result is complete: apply the reduction's last part
};

using Plan = std::vector<Operation>;

}  // namespace paralet::cpu_device
