// SPDX-License-Identifier: Apache-2.0
#include "log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "paralet_profiler.h"

enum { MAX_LINES = 4096, MAX_HANDLES = 64, MAX_EVENTS = 4096 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct log_line lines[MAX_LINES];
static int line_count;
static const char* fault;
static char handles[MAX_HANDLES];
static const char* call_fault;

void log_write(ncclDebugLogLevel level, unsigned long flags, const char* file, int line, const char* format, ...) {
  char text[sizeof lines[0].text];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  const size_t length = strlen(text);

  pthread_mutex_lock(&mutex);
  if (!file || !*file || line <= 0) fault = "a log line names no source file and line, which NCCL prints with it";
  if (length == 0) fault = "a log line is empty";
  if (length > 0 && text[length - 1] == '\n') fault = "a log line ends with a newline, which NCCL adds itself";
  if (line_count < MAX_LINES) {
    struct log_line* added = &lines[line_count++];
    added->level = level;
    added->flags = flags;
    memcpy(added->text, text, length + 1);
  }
  pthread_mutex_unlock(&mutex);
}

const struct log_line* log_line_of(ncclDebugLogLevel level, int index) {
  const struct log_line* found = NULL;
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < line_count && !found; i++) {
    if (lines[i].level == level && index-- == 0) found = &lines[i];
  }
  pthread_mutex_unlock(&mutex);
  return found;
}

int log_count(ncclDebugLogLevel level, const char* containing) {
  int count = 0;
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < line_count; i++) count += lines[i].level == level && strstr(lines[i].text, containing);
  pthread_mutex_unlock(&mutex);
  return count;
}

const char* log_fault(void) {
  pthread_mutex_lock(&mutex);
  const char* found = fault;
  pthread_mutex_unlock(&mutex);
  return found;
}

void log_dump(void) {
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < line_count;) {
    int next = i + 1;
    while (next < line_count && strcmp(lines[next].text, lines[i].text) == 0) next++;
    fprintf(stderr, "  plugin log, level %d, %d times: %s\n", lines[i].level, next - i, lines[i].text);
    i = next;
  }
  pthread_mutex_unlock(&mutex);
}

void* profiler_handle(int index) { return &handles[index % MAX_HANDLES]; }

static bool listening;
static struct profiled profile;
static char open_events[MAX_EVENTS];  // 1: started and not stopped

void profiler_listen(void) {
  pthread_mutex_lock(&mutex);
  listening = true;
  pthread_mutex_unlock(&mutex);
}

struct profiled profiler_calls(void) {
  pthread_mutex_lock(&mutex);
  const struct profiled copy = profile;
  pthread_mutex_unlock(&mutex);
  return copy;
}

/// Takes a start, or ends an event. Called with the mutex held.
static void follow_event(void** event, int type, int64_t plugin_id, const void* data) {
  if (type == 0) {
    if (profile.started == MAX_EVENTS) return;
    open_events[profile.started] = 1;
    *event = &open_events[profile.started++];
    if (plugin_id != PARALET_PROFILER_ID) return;  // the layout of other plugins' data is not known
    const paraletProfilerEvent_v1_t* of = data;
    if (of->type == PARALET_PROFILE_MESSAGE) profile.messages++;
    if (of->type == PARALET_PROFILE_FLOWLET) profile.flowlets++, profile.flowlet_bytes += of->bytes;
    if (of->began_ns <= 0) call_fault = "an event has no time at which it began";
    return;
  }
  char* opened = *event;
  if (opened < open_events || opened >= open_events + profile.started || !*opened) {
    call_fault = "the profiler was asked to stop an event that is not in progress";
  } else if (type != 2) {
    *opened = 0;
    profile.stopped++;
  }
}

ncclResult_t profiler_call(void** event, int type, void* phandle, int64_t plugin_id, void* data) {
  pthread_mutex_lock(&mutex);
  if (listening && event) follow_event(event, type, plugin_id, data);
  if (!event) call_fault = "the profiler was called without a place for its event";
  if (type < 0 || type > 3) call_fault = "the profiler was called with an unknown event type";
  const char* handle = phandle;
  if (type == 0 && (handle < handles || handle >= handles + MAX_HANDLES)) {
    call_fault = "the profiler was called with a handle that was not given to isend or irecv";
  }
  pthread_mutex_unlock(&mutex);
  return ncclSuccess;
}

const char* profiler_fault(void) {
  pthread_mutex_lock(&mutex);
  const char* found = call_fault;
  pthread_mutex_unlock(&mutex);
  return found;
}
