// SPDX-License-Identifier: Apache-2.0
// The logger and the profiler that NCCL would hand to the plugin: they remember what they were given.
#pragma once

#include <stddef.h>

#include "paralet_nccl_net.h"

struct log_line {
  ncclDebugLogLevel level;
  unsigned long flags;
  char text[512];
};

void log_write(ncclDebugLogLevel level, unsigned long flags, const char* file, int line, const char* format, ...)
    __attribute__((format(printf, 5, 6)));
/// The number of lines of a level that contain a text ("" for all of them).
int log_count(ncclDebugLogLevel level, const char* containing);
/// A line of a level, from 0, or NULL.
const struct log_line* log_line_of(ncclDebugLogLevel level, int index);
/// What a line broke of the logger's own contract (no trailing newline, a file name, no empty text), or NULL.
const char* log_fault(void);
/// All lines to standard error, those that repeat once.
void log_dump(void);

ncclResult_t profiler_call(void** event, int type, void* phandle, int64_t plugin_id, void* data);
/// Handles that the rules hand out: the profiler may be called with no other.
void* profiler_handle(int index);
/// What the plugin did wrong in calling the profiler, or NULL.
const char* profiler_fault(void);
