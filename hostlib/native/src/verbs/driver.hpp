// SPDX-License-Identifier: Apache-2.0
// What drivers of RDMA devices do with a flow label.
#pragma once

#include <string>

namespace paralet::verbs {

/// Whether the driver chooses source ports by itself, whatever the flow label: bnxt_re, and rxe before Linux 5.18.
bool ignores_flow_label(const std::string& device);

}  // namespace paralet::verbs
