// SPDX-License-Identifier: Apache-2.0
#include "log.hpp"

#include <atomic>
#include <cstring>

#include "base/printable.hpp"

namespace paralet::plugin {
namespace {

std::atomic<ncclDebugLogger_t> current_logger{nullptr};

void log(ncclDebugLogLevel level, const std::string& text, const char* file, int line) noexcept {
  const ncclDebugLogger_t logger = current_logger.load(std::memory_order_acquire);
  if (logger == nullptr) return;
  const char* slash = std::strrchr(file, '/');
  logger(level, static_cast<unsigned long>(NCCL_INIT) | NCCL_NET, slash != nullptr ? slash + 1 : file, line,
         "NET/paralet: %s", printable(text).c_str());
}

}  // namespace

void set_logger(ncclDebugLogger_t logger) noexcept { current_logger.store(logger, std::memory_order_release); }

void log_warning(const std::string& text, const char* file, int line) noexcept { log(NCCL_LOG_WARN, text, file, line); }

void log_info(const std::string& text, const char* file, int line) noexcept { log(NCCL_LOG_INFO, text, file, line); }

}  // namespace paralet::plugin
