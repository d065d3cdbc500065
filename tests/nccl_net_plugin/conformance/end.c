// SPDX-License-Identifier: Apache-2.0
#include "end.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "log.h"

double timeout_s = 60;
static _Thread_local struct end* current_end;
static pthread_mutex_t step_mutex = PTHREAD_MUTEX_INITIALIZER;  // an end may have threads

void set_current_end(struct end* end) { current_end = end; }

void fail_at(const char* file, int line, const char* format, ...) {
  char what[900];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  struct report* report = current_end->report;
  if (__atomic_fetch_add(&report->failures, 1, __ATOMIC_ACQ_REL) > 0) {
    for (;;) pause();  // another thread of this end has reported a failure and ends the process
  }
  const char* name = strrchr(file, '/');
  snprintf(report->failure, sizeof report->failure, "%s: %s (%s, at %s:%d)", current_end->role, what, report->step,
           name ? name + 1 : file, line);
  log_dump();
  _exit(1);
}

const char* result_name(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "ncclSuccess";
    case ncclUnhandledCudaError:
      return "ncclUnhandledCudaError";
    case ncclSystemError:
      return "ncclSystemError";
    case ncclInternalError:
      return "ncclInternalError";
    case ncclInvalidArgument:
      return "ncclInvalidArgument";
    case ncclInvalidUsage:
      return "ncclInvalidUsage";
    case ncclRemoteError:
      return "ncclRemoteError";
    default:
      return "an unknown result";
  }
}

void step(const char* format, ...) {
  struct report* report = current_end->report;
  va_list arguments;
  va_start(arguments, format);
  pthread_mutex_lock(&step_mutex);
  vsnprintf(report->step, sizeof report->step, format, arguments);
  pthread_mutex_unlock(&step_mutex);
  va_end(arguments);
  __atomic_fetch_add(&report->steps, 1, __ATOMIC_RELAXED);
}

double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void sleep_s(double seconds) {
  const struct timespec time = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
  nanosleep(&time, NULL);
}

void poll_again(struct waiting* waiting, const char* for_what) {
  const double now = now_s();
  if (waiting->rounds++ == 0) waiting->until = now + timeout_s;
  if (now > waiting->until) fail("expected %s within %g s", for_what, timeout_s);
  if (waiting->rounds < 200) {
    sched_yield();
  } else {
    sleep_s(50e-6);
  }
}

/// The other end has failed. Leaves the supervisor time to read its report, which says more.
static _Noreturn void fail_with_other_end(void) {
  sleep_s(2);
  fail("the other end closed the connection between the ends");
}

void send_to_other_end(struct end* end, const void* data, size_t size) {
  const char* next = data;
  while (size > 0) {
    const ssize_t taken = write(end->channel, next, size);
    if (taken < 0 && errno == EINTR) continue;
    if (taken <= 0) fail_with_other_end();
    next += taken;
    size -= (size_t)taken;
  }
}

void receive_from_other_end(struct end* end, void* data, size_t size) {
  char* next = data;
  while (size > 0) {
    const ssize_t got = read(end->channel, next, size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) fail_with_other_end();
    next += got;
    size -= (size_t)got;
  }
}

void synchronize(struct end* end) {
  char token = '=';
  send_to_other_end(end, &token, 1);
  receive_from_other_end(end, &token, 1);
  expect(token == '=', "expected the other end at the same barrier: the two ends of this rule do not match");
  __atomic_fetch_add(&end->report->steps, 1, __ATOMIC_RELAXED);
}

void load(struct plugin* plugin, const char* path, int version) {
  plugin->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!plugin->library) fail("expected dlopen to load the plugin, got the error: %s", dlerror());
  const char* missing = net_from_library(&plugin->net, plugin->library, version);
  if (missing) fail("expected a complete ncclNetPlugin_v%d, but %s", version, missing);
}

void unload(struct plugin* plugin) {
  if (dlclose(plugin->library) != 0) fail("expected dlclose to succeed, got the error: %s", dlerror());
  plugin->library = NULL;
}

void* listen_at(struct end* end, struct handle* handle) {
  // NCCL's memory for the handle is neither aligned nor necessarily zero.
  unsigned char around[1 + HANDLE_BYTES + 64];
  memset(around, 0xA5, sizeof around);
  void* comm = NULL;
  expect_success(end->net->listen(end->ctx, end->dev, around + 1, &comm));
  expect(comm, "expected a listen comm, got NULL");
  for (size_t i = 1 + HANDLE_BYTES; i < sizeof around; i++) {
    expect(around[i] == 0xA5, "expected listen() to write at most 128 bytes of the handle, it wrote byte %zu", i - 1);
  }
  expect(around[0] == 0xA5, "expected listen() not to write the byte before the handle");
  memcpy(handle->bytes, around + 1, HANDLE_BYTES);
  return comm;
}

void* accept_one(struct end* end, void* listen_comm) {
  void* comm = NULL;
  struct waiting waiting = {0};
  for (;;) {
    expect_success(end->net->accept(listen_comm, &comm));
    if (comm) return comm;
    poll_again(&waiting, "accept() to return a comm");
  }
}

void* connect_to(struct end* end, struct handle* handle) {
  void* comm = NULL;
  struct waiting waiting = {0};
  for (;;) {
    expect_success(end->net->connect(end->ctx, end->dev, handle->bytes, &comm));
    if (comm) return comm;
    poll_again(&waiting, "connect() to return a comm");
  }
}

static bool listens(const struct end* end) { return strcmp(end->role, "listener") == 0; }

void* open_connection(struct end* end) {
  struct handle handle;
  if (!listens(end)) {
    receive_from_other_end(end, handle.bytes, sizeof handle.bytes);
    return connect_to(end, &handle);
  }
  void* listen_comm = listen_at(end, &handle);
  send_to_other_end(end, handle.bytes, sizeof handle.bytes);
  void* comm = accept_one(end, listen_comm);
  expect_success(end->net->close_listen(listen_comm));
  return comm;
}

void close_connection(struct end* end, void* comm) {
  expect_success(listens(end) ? end->net->close_recv(comm) : end->net->close_send(comm));
}

struct region region_map(size_t size) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  const size_t whole = (size + page - 1) / page * page + (size == 0 ? page : 0);
  unsigned char* base = mmap(NULL, whole + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED || mprotect(base + page, whole, PROT_READ | PROT_WRITE) != 0) {
    fail("cannot map a region of %zu bytes: %s", size, strerror(errno));
  }
  memset(base + page, UNTOUCHED, whole);
  return (struct region){base + page, whole, NULL};
}

void region_unmap(struct region* region) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  munmap(region->bytes - page, region->size + 2 * page);
  region->bytes = NULL;
}

struct region region_register(struct end* end, void* comm, size_t size) {
  struct region region = region_map(size);
  expect_success(end->net->reg_mr(comm, region.bytes, region.size, NCCL_PTR_HOST, &region.mr));
  return region;
}

void region_release(struct end* end, void* comm, struct region* region) {
  expect_success(end->net->dereg_mr(comm, region->mr));
  region_unmap(region);
}

// Eight bytes of a message's content (splitmix64).
static uint64_t word(uint64_t seed, uint64_t index) {
  uint64_t z = seed * 0x9E3779B97F4A7C15U + index * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

uint64_t content_of(int series, int number) { return (uint64_t)series * 1000000 + (uint64_t)number; }

void fill(unsigned char* bytes, size_t size, uint64_t seed) {
  for (size_t at = 0; at < size; at += 8) {
    const uint64_t value = word(seed, at);
    memcpy(bytes + at, &value, size - at < 8 ? size - at : 8);
  }
}

// The first byte that differs from the expected content; `size` when there is none.
static size_t difference(const unsigned char* bytes, size_t size, uint64_t seed) {
  for (size_t at = 0; at < size; at += 8) {
    const uint64_t value = word(seed, at);
    unsigned char right[8];
    memcpy(right, &value, 8);
    const size_t length = size - at < 8 ? size - at : 8;
    if (memcmp(bytes + at, right, length) == 0) continue;
    for (size_t i = 0; i < length; i++) {
      if (bytes[at + i] != right[i]) return at + i;
    }
  }
  return size;
}

// Read while the plugin may be writing, to see whether the message arrives without any call.
__attribute__((noinline, no_sanitize("thread"))) bool is_filled(const unsigned char* bytes, size_t size,
                                                                uint64_t seed) {
  const volatile unsigned char* seen = bytes;
  for (size_t at = 0; at < size; at += 8) {
    const uint64_t value = word(seed, at);
    for (size_t i = 0; i < 8 && at + i < size; i++) {
      if (seen[at + i] != (unsigned char)(value >> (8 * i))) return false;
    }
  }
  return true;
}

void check_filled(const unsigned char* bytes, size_t size, uint64_t seed, const char* what) {
  const size_t at = difference(bytes, size, seed);
  if (at < size) fail("expected the content of %s (%zu bytes) as sent, byte %zu differs", what, size, at);
}

void check_untouched(const unsigned char* bytes, size_t size, const char* what) {
  for (size_t i = 0; i < size; i++) {
    if (bytes[i] != UNTOUCHED) fail("expected no write to %s, byte %zu of %zu was written", what, i, size);
  }
}

void* try_send(struct end* end, void* comm, void* data, size_t size, int tag, void* mr) {
  void* request = NULL;
  expect_success(end->net->isend(comm, data, size, tag, mr, NULL, &request));
  return request;
}

void* try_receive(struct end* end, void* comm, void* data, size_t size, int tag, void* mr) {
  void* request = NULL;
  expect_success(end->net->irecv(comm, 1, &data, &size, &tag, &mr, NULL, &request));
  return request;
}

void* send_one(struct end* end, void* comm, void* data, size_t size, int tag, void* mr) {
  struct waiting waiting = {0};
  for (;;) {
    void* request = try_send(end, comm, data, size, tag, mr);
    if (request) return request;
    poll_again(&waiting, "isend() to accept a message");
  }
}

void* receive_one(struct end* end, void* comm, void* data, size_t size, int tag, void* mr) {
  struct waiting waiting = {0};
  for (;;) {
    void* request = try_receive(end, comm, data, size, tag, mr);
    if (request) return request;
    poll_again(&waiting, "irecv() to accept a receive");
  }
}

int finish(struct end* end, void* request) {
  int done = 0;
  int sizes[MAX_GROUP] = {0};
  struct waiting waiting = {0};
  for (;;) {
    expect_success(end->net->test(request, &done, sizes));
    expect(done == 0 || done == 1, "expected test() to set done to 0 or 1, got %d", done);
    if (done) return sizes[0];
    poll_again(&waiting, "test() to report a request as done");
  }
}

void finish_with(struct end* end, void* request, size_t size, const char* what) {
  const int received = finish(end, request);
  expect((size_t)received == size, "expected test() to report %zu bytes for %s, got %d", size, what, received);
}

bool wait_done_or_failed(struct end* end, void* request) {
  int done = 0;
  int sizes[MAX_GROUP] = {0};
  struct waiting waiting = {0};
  for (;;) {
    if (end->net->test(request, &done, sizes) != ncclSuccess) return false;
    if (done) return true;
    poll_again(&waiting, "test() to report a request as done or failed");
  }
}

void exchange(struct end* end, void* comm, size_t size, uint64_t seed) {
  struct region region = region_register(end, comm, size);
  if (listens(end)) {
    finish_with(end, receive_one(end, comm, region.bytes, size, 1, region.mr), size, "a received message");
    check_filled(region.bytes, size, seed, "a message");
  } else {
    fill(region.bytes, size, seed);
    finish_with(end, send_one(end, comm, region.bytes, size, 1, region.mr), size, "a sent message");
  }
  region_release(end, comm, &region);
}

static bool is_stopped(pid_t pid) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
  DIR* tasks = opendir(path);
  expect(tasks, "cannot read %s: %s", path, strerror(errno));
  bool still = true;
  for (const struct dirent* task = readdir(tasks); task && still; task = readdir(tasks)) {
    if (task->d_name[0] == '.') continue;
    char stat[400];
    snprintf(stat, sizeof stat, "/proc/%d/task/%s/stat", (int)pid, task->d_name);
    FILE* file = fopen(stat, "re");
    char state = '?';
    still = file && fscanf(file, "%*d (%*[^)]) %c", &state) == 1 && state == 'T';
    if (file) fclose(file);
  }
  closedir(tasks);
  return still;
}

void stop_process(pid_t pid) {
  kill(pid, SIGSTOP);
  struct waiting waiting = {0};
  while (!is_stopped(pid)) poll_again(&waiting, "all threads of a process to stop");
}

static int entries(const char* path) {
  DIR* directory = opendir(path);
  if (!directory) fail("cannot read %s: %s", path, strerror(errno));
  int count = 0;
  while (readdir(directory)) count++;
  closedir(directory);
  return count;
}

int open_files(void) { return entries("/proc/self/fd"); }

int running_threads(void) { return entries("/proc/self/task"); }

long resident_bytes(void) {
  FILE* file = fopen("/proc/self/statm", "re");
  long total = 0;
  long resident = 0;
  if (!file || fscanf(file, "%ld %ld", &total, &resident) != 2) fail("cannot read /proc/self/statm");
  fclose(file);
  return resident * sysconf(_SC_PAGESIZE);
}

struct pair open_pair(struct end* end) {
  struct handle handle;
  struct pair pair = {NULL, NULL};
  void* listen_comm = listen_at(end, &handle);
  struct waiting waiting = {0};
  for (;;) {
    if (!pair.send) expect_success(end->net->connect(end->ctx, end->dev, handle.bytes, &pair.send));
    if (!pair.recv) expect_success(end->net->accept(listen_comm, &pair.recv));
    if (pair.send && pair.recv) break;
    poll_again(&waiting, "alternating connect() and accept() to return comms");
  }
  expect_success(end->net->close_listen(listen_comm));
  return pair;
}

void close_pair(struct end* end, struct pair* pair) {
  expect_success(end->net->close_send(pair->send));
  expect_success(end->net->close_recv(pair->recv));
}

void exchange_self(struct end* end, const struct pair* pair, size_t size, uint64_t seed) {
  struct region from = region_register(end, pair->send, size);
  struct region to = region_register(end, pair->recv, size);
  fill(from.bytes, size, seed);
  void* received = receive_one(end, pair->recv, to.bytes, size, 1, to.mr);
  void* sent = send_one(end, pair->send, from.bytes, size, 1, from.mr);
  finish_with(end, sent, size, "a sent message");
  finish_with(end, received, size, "a received message");
  check_filled(to.bytes, size, seed, "a message");
  region_release(end, pair->send, &from);
  region_release(end, pair->recv, &to);
}
