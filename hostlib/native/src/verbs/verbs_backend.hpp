// SPDX-License-Identifier: Apache-2.0
// The `verbs` back end: RoCEv2 RC by a NIC or by the kernel's rxe, through libibverbs. This header does not include the
// headers of libibverbs. The other headers of this folder have a class for each of its jobs.
#pragma once

#include <memory>

#include "backend/backend.hpp"
#include "verbs/verbs_options.hpp"

namespace paralet {

/// Throws DeviceError with one sentence: no libibverbs, no device with that address, or no permission.
std::unique_ptr<Backend> open_verbs(const VerbsOptions& options);

}  // namespace paralet
