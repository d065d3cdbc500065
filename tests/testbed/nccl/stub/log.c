/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL_DEBUG, NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE, and NCCL's form of a line.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "stub.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static FILE* file;
static int threshold;
static unsigned long mask;
static char last_warning[1024];

static void open_log(void) {
  const char* level = getenv("NCCL_DEBUG");
  threshold = level == NULL                     ? NCCL_LOG_NONE
              : strcasecmp(level, "INFO") == 0  ? NCCL_LOG_INFO
              : strcasecmp(level, "TRACE") == 0 ? NCCL_LOG_TRACE
                                                : NCCL_LOG_WARN;
  const char* systems = getenv("NCCL_DEBUG_SUBSYS");
  mask = systems == NULL ? NCCL_INIT | NCCL_ENV : 0;
  if (systems != NULL) {
    if (strstr(systems, "INIT") != NULL) mask |= NCCL_INIT;
    if (strstr(systems, "NET") != NULL) mask |= NCCL_NET;
    if (strstr(systems, "ENV") != NULL) mask |= NCCL_ENV;
    if (strstr(systems, "ALL") != NULL) mask = (unsigned long)NCCL_ALL;
  }
  file = stdout;
  const char* path = getenv("NCCL_DEBUG_FILE");
  if (path != NULL && threshold > NCCL_LOG_VERSION) {
    FILE* opened = fopen(path, "we"); /* %h and %p, which NCCL replaces, are not needed here */
    if (opened != NULL) {
      setlinebuf(opened);
      file = opened;
    }
  }
}

void stub_log(ncclDebugLogLevel level, unsigned long flags, const char* source, int line, const char* format, ...) {
  pthread_once(&once, open_log);
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  pthread_mutex_lock(&mutex);
  if (level == NCCL_LOG_WARN) memcpy(last_warning, text, sizeof last_warning);
  if ((int)level <= threshold && (flags & mask) != 0) {
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    if (level == NCCL_LOG_WARN) {
      fprintf(file, "\n%s:%d:%d [0] %s:%d NCCL WARN %s\n", host, getpid(), gettid(), source, line, text);
    } else {
      fprintf(file, "%s:%d:%d [0] NCCL INFO %s\n", host, getpid(), gettid(), text);
    }
  }
  pthread_mutex_unlock(&mutex);
}

const char* stub_last_warning(void) { return last_warning; }

bool stub_fault(const char* name) {
  const char* fault = getenv("PARALET_STUB_FAULT");
  return fault != NULL && strcmp(fault, name) == 0;
}
