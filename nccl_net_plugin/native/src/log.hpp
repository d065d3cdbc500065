// SPDX-License-Identifier: Apache-2.0
// Lines in NCCL's own log. Nothing here throws, and before NCCL has passed its logger nothing is written.
#pragma once

#include <string>

#include "paralet_nccl_net.h"

namespace paralet::plugin {

/// The logger that all lines go to from now on. NCCL's may be called from any thread.
void set_logger(ncclDebugLogger_t logger) noexcept;

/// What somebody should act on: shown with NCCL_DEBUG=WARN.
void log_warning(const std::string& text, const char* file = __builtin_FILE(), int line = __builtin_LINE()) noexcept;
/// What is good to know: shown with NCCL_DEBUG=INFO.
void log_info(const std::string& text, const char* file = __builtin_FILE(), int line = __builtin_LINE()) noexcept;

}  // namespace paralet::plugin
