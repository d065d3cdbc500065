// SPDX-License-Identifier: Apache-2.0
// The logger and the profiler callback that the suite passes to the plugin. They record their calls.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
/// The first violation of the logger's contract (a file name, no empty text, no trailing newline), or NULL.
const char* log_fault(void);
/// Writes all lines to standard error; repeated lines appear once, with a count.
void log_dump(void);

ncclResult_t profiler_call(void** event, int type, void* phandle, int64_t plugin_id, void* data);
/// The handles that rules pass to the plugin. It may call the profiler with no others.
void* profiler_handle(int index);
/// From now on the profiler takes events, as when a profiler plugin is loaded that wants events of the network.
void profiler_listen(void);
struct profiled {
  int started;
  int stopped;
  int messages;  ///< of the plugin under test: events of type 1
  int flowlets;  ///< type 2
  uint64_t flowlet_bytes;
};
/// What the profiler has been called with so far.
struct profiled profiler_calls(void);
/// The first wrong call of the profiler, or NULL.
const char* profiler_fault(void);
