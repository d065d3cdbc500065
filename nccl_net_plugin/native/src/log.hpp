// SPDX-License-Identifier: Apache-2.0
// Writes to NCCL's log. Nothing is written before NCCL has passed its logger.
#pragma once

#include <string>

#include "paralet_nccl_net.h"

namespace paralet::plugin {

/// Sets the logger. NCCL's logger may be called from any thread.
void set_logger(ncclDebugLogger_t logger) noexcept;

/// A line that calls for action; shown with NCCL_DEBUG=WARN.
void log_warning(const std::string& text, const char* file = __builtin_FILE(), int line = __builtin_LINE()) noexcept;
/// A line for information; shown with NCCL_DEBUG=INFO.
void log_info(const std::string& text, const char* file = __builtin_FILE(), int line = __builtin_LINE()) noexcept;

}  // namespace paralet::plugin
