// SPDX-License-Identifier: Apache-2.0
// libnccl-net-faulty.so: a plugin that forwards every call to another plugin and adds one fault. It shows that every
// rule of net-conformance can fail.
//
// Environment: FAULTY_PLUGIN is the path of the other plugin, FAULTY_FAULT the name of the fault ("none" for none).
// Exports version 12, and version 8 with the single fault dies-at-dlclose.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "paralet_nccl_net.h"

#define EXPORT __attribute__((visibility("default")))

enum { GROUP = 8, KEPT = 1 << 16 };

static void* library;
static const ncclNet_v12_t* real;
static const char* fault = "none";
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static bool is(const char* name) { return strcmp(fault, name) == 0; }

EXPORT ncclNet_v8_t ncclNetPlugin_v8;
EXPORT ncclNet_v12_t ncclNetPlugin_v12;

/// Wraps the other plugin's request. Never freed, because faults may use it after its end.
struct request {
  bool sends;
  void* comm;
  int n;
  void* data[GROUP];
  size_t sizes[GROUP];
  int tag;
  void* mr;
  void* phandle;
  void* inner;  ///< NULL: not yet forwarded
  pthread_t poster;
};

static int outstanding;  // receives
static int taken;        // number of requests so far
static bool any_send;
static bool all_closed;  // close-closes-all
static bool finalized;   // one-context
static struct request* kept[KEPT];
static int kept_count;

static struct request* keep(const struct request* from) {
  struct request* request = malloc(sizeof *request);
  if (!request) abort();
  *request = *from;
  request->poster = pthread_self();
  pthread_mutex_lock(&mutex);
  taken++;
  if (kept_count < KEPT) kept[kept_count++] = request;
  pthread_mutex_unlock(&mutex);
  return request;
}

static void a_while(long milliseconds) { nanosleep(&(struct timespec){0, milliseconds * 1000000}, NULL); }

// A write or a read of the caller's memory, later and without its knowledge.

static void* touch_later(void* address) {
  a_while(50);
  volatile unsigned char* byte = address;
  if (is("reads-after-close")) {
    (void)*byte;
  } else {
    *byte = 0x55;
  }
  return NULL;
}

static void lose(size_t bytes) {
  volatile char* lost = malloc(bytes);
  for (size_t i = 0; lost && i < bytes; i += 64) lost[i] = 1;
}

static void* stay(void* nothing) {
  for (;;) pause();
  return nothing;
}

static void in_background(void* (*what)(void*), void* argument) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, what, argument) == 0) pthread_detach(thread);
}

/// The buffers of all requests that were ever posted on a comm, or on all comms.
static void touch_buffers_of(const void* comm) {
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < kept_count; i++) {
    if (!comm || kept[i]->comm == comm) in_background(touch_later, kept[i]->data[0]);
  }
  pthread_mutex_unlock(&mutex);
}

// init, devices

static ncclDebugLogger_t logger;

__attribute__((format(printf, 5, 6))) static void log_twice(ncclDebugLogLevel level, unsigned long flags,
                                                            const char* file, int line, const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  const bool silent = is("no-warning") && level == NCCL_LOG_WARN;
  for (int i = silent ? 2 : 0; i < 2; i++) logger(level, flags, file, line, "%s", text);
}

static ncclResult_t init(void** ctx, uint64_t comm_id, ncclNetCommConfig_v12_t* config, ncclDebugLogger_t log,
                         ncclProfilerCallback_t profiler) {
  static int times;
  if (is("inits-once") && times++ > 0) return ncclInternalError;
  if (is("leaks-thread")) in_background(stay, NULL);
  logger = log;
  if (is("ignores-traffic-class")) config = NULL;
  return real->init(ctx, comm_id, config, is("two-banners") || is("no-warning") ? log_twice : log, profiler);
}

static ncclResult_t devices(int* count) {
  static int more;
  const ncclResult_t result = real->devices(count);
  if (is("changing-devices")) *count += more++;
  return result;
}

static ncclResult_t get_properties(int dev, ncclNetProperties_v12_t* properties) {
  const ncclResult_t result = real->getProperties(is("any-device") ? 0 : dev, properties);
  if (is("no-speed")) properties->speed = 0;
  if (is("properties-overflow")) memset(properties + 1, 0x55, 4);
  if (is("equal-guids")) properties->guid = 1;
  return result;
}

static ncclResult_t make_vdevice(int* made, ncclNetVDeviceProps_v12_t* list) {
  const ncclResult_t result = real->makeVDevice(made, list);
  return is("fuses-anything") ? ncclSuccess : result;
}

static ncclResult_t finalize(void* ctx) {
  finalized = true;
  return real->finalize(ctx);
}

// connections

static ncclResult_t listen_at(void* ctx, int dev, void* handle, void** comm) {
  const ncclResult_t result = real->listen(ctx, is("any-device") ? 0 : dev, handle, comm);
  if (is("handle-overflow")) ((char*)handle)[NCCL_NET_HANDLE_MAXSIZE] = 1;
  if (is("forgetful-handle")) memset((char*)handle + 8, 0, NCCL_NET_HANDLE_MAXSIZE - 8);
  return result;
}

static ncclResult_t connect_to(void* ctx, int dev, void* handle, void** comm, ncclNetDeviceHandle_v12_t** device) {
  static char last_handle[16];
  static void* last_comm;
  if (is("connect-never")) {
    *comm = NULL;
    return ncclSuccess;
  }
  if (is("same-comm") && last_comm && memcmp(last_handle, handle, sizeof last_handle) == 0) {
    *comm = last_comm;
    return ncclSuccess;
  }
  ncclResult_t result = ncclSuccess;
  do {
    result = real->connect(ctx, is("any-device") ? 0 : dev, handle, comm, device);
  } while (is("connect-blocks") && result == ncclSuccess && !*comm);
  if (is("connect-fails-early") && !*comm) return ncclRemoteError;
  if (is("swallows-errors") && result != ncclSuccess) {
    *comm = NULL;
    return ncclSuccess;
  }
  if (is("leaks-memory")) lose(1 << 14);
  if (*comm) last_comm = *comm, memcpy(last_handle, handle, sizeof last_handle);
  return result;
}

static ncclResult_t accept_one(void* listen_comm, void** comm, ncclNetDeviceHandle_v12_t** device) {
  ncclResult_t result = ncclSuccess;
  do {
    result = real->accept(listen_comm, comm, device);
  } while (is("accept-blocks") && result == ncclSuccess && !*comm);
  if (is("accept-leaves-comm") && !*comm) *comm = listen_comm;
  return result;
}

static ncclResult_t close_listen(void* comm) {
  if (is("close-listen-closes-all")) all_closed = true;
  return real->closeListen(comm);
}

static ncclResult_t close_comm(void* comm, ncclResult_t (*close_it)(void*)) {
  if (is("leaks-fd") && open("/dev/null", O_RDONLY) < 0) return ncclSystemError;
  if (is("close-closes-all")) all_closed = true;
  if (is("reads-after-close") || is("writes-after-close")) touch_buffers_of(comm);
  if (is("slow-close")) sleep(3);
  const ncclResult_t result = close_it(comm);
  return is("close-error") ? ncclRemoteError : result;
}

static ncclResult_t close_send(void* comm) { return close_comm(comm, real->closeSend); }
static ncclResult_t close_recv(void* comm) { return close_comm(comm, real->closeRecv); }

// memory

static char* unregistered;  // merges-registrations: start of the region that was deregistered last
static void* first_comm;    // region-per-comm

static ncclResult_t reg_mr(void* comm, void* data, size_t size, int type, void** mr) {
  if (is("leaks-registrations")) lose(1 << 10);
  if (is("registers-anything")) {
    *mr = NULL;
    return ncclSuccess;
  }
  if (!first_comm) first_comm = comm;
  return real->regMr(comm, data, size, is("takes-gpu-memory") ? NCCL_PTR_HOST : type, mr);
}

static ncclResult_t dereg_mr(void* comm, void* mr) {
  if (is("merges-registrations")) unregistered = mr;
  const ncclResult_t result = real->deregMr(comm, mr);
  if (is("writes-after-deregister")) touch_buffers_of(NULL);
  return result;
}

// messages

/// The result that a fault returns for any call on a comm, or -1 to forward the call.
static int refusal(const void* comm) {
  if (all_closed) return ncclInternalError;
  if (is("merges-registrations") && unregistered) return ncclInvalidArgument;
  if (is("one-context") && finalized) return ncclInternalError;
  if (is("region-per-comm") && first_comm && comm != first_comm) return ncclInvalidArgument;
  if (is("one-thread-only")) {
    static pthread_t only;
    static bool known;
    pthread_mutex_lock(&mutex);
    if (!known) only = pthread_self(), known = true;
    const bool other = !pthread_equal(only, pthread_self());
    pthread_mutex_unlock(&mutex);
    if (other) return ncclInternalError;
  }
  return -1;
}

static ncclResult_t pass_on(struct request* request) {
  return real->isend(request->comm, request->data[0], request->sizes[0], request->tag, request->mr,
                     is("forgets-phandles") ? NULL : request->phandle, &request->inner);
}

static ncclResult_t isend(void* comm, void* data, size_t size, int tag, void* mr, void* phandle, void** request) {
  *request = NULL;
  const int refused = refusal(comm);
  if (refused >= 0) return (ncclResult_t)refused;
  any_send = true;
  struct request made = {
      .sends = true, .comm = comm, .n = 1, .data = {data}, .sizes = {size}, .tag = tag, .mr = mr, .phandle = phandle};
  if (is("ignores-tags")) made.tag = 0;
  if (is("corrupts-a-byte") && size > 1000) ((char*)data)[size / 2] ^= 1;
  if (is("loses-last-byte") && size > 1) made.sizes[0]--;
  if (is("lazy-send")) {
    *request = keep(&made);
    return ncclSuccess;
  }
  const ncclResult_t result = pass_on(&made);
  if (is("error-when-full") && result == ncclSuccess && !made.inner) return ncclInternalError;
  if (is("swallows-errors") && result != ncclSuccess) return ncclSuccess;
  if (result == ncclSuccess && made.inner) *request = keep(&made);
  return result;
}

static void swap(void** a, void** b) {
  void* kept_a = *a;
  *a = *b;
  *b = kept_a;
}

static ncclResult_t irecv(void* comm, int n, void** data, size_t* sizes, int* tags, void** mrs, void** phandles,
                          void** request) {
  void* const before = *request;
  *request = NULL;
  const int refused = refusal(comm);
  if (refused >= 0) return (ncclResult_t)refused;
  if (is("any-group") && (n < 1 || n > GROUP)) return ncclSuccess;
  if (is("fails-after-many") && taken > 1000) return ncclSuccess;
  if (is("half-duplex") && any_send) return ncclSuccess;
  if (is("sixteen-requests") && outstanding >= 16) return ncclSuccess;
  if (is("uses-phandles") && !phandles[0]) return ncclInvalidArgument;
  struct request made = {.comm = comm, .n = n};
  int own_tags[GROUP] = {0};
  for (int i = 0; i < n && i < GROUP; i++) {
    made.data[i] = data[i];
    made.sizes[i] = sizes[i];
    own_tags[i] = is("ignores-tags") ? 0 : tags[i];
    if (is("aligns-down")) made.data[i] = (char*)data[i] - (size_t)data[i] % 8;
  }
  if (is("byte-past-receive")) ((char*)data[0])[sizes[0]] = 0x55;
  if (is("swaps-equal-tags") && n > 2 && tags[2] == tags[0]) swap(&made.data[0], &made.data[2]);
  if (is("swaps-members") && n == 6) swap(&made.data[4], &made.data[5]);
  const ncclResult_t result = real->irecv(comm, n, made.data, sizes, own_tags, mrs, phandles, &made.inner);
  if (is("error-when-full") && result == ncclSuccess && !made.inner) return ncclInternalError;
  if (result != ncclSuccess || !made.inner) return result;
  pthread_mutex_lock(&mutex);
  outstanding++;
  pthread_mutex_unlock(&mutex);
  *request = is("keeps-preset") && before ? before : keep(&made);
  return result;
}

static ncclResult_t iflush(void* comm, int n, void** data, int* sizes, void** mrs, void** request) {
  const ncclResult_t result = real->iflush(comm, n, data, sizes, mrs, request);
  return is("flush-error") ? ncclInternalError : result;
}

static ncclResult_t test(void* opaque, int* done, int* sizes) {
  struct request* request = opaque;
  const int refused = refusal(first_comm);
  if (refused >= 0) return (ncclResult_t)refused;
  if (is("thread-bound") && !pthread_equal(request->poster, pthread_self())) return ncclInternalError;
  *done = 0;
  if (!request->inner) {
    const ncclResult_t result = pass_on(request);
    if (result != ncclSuccess || !request->inner) return result;
  }
  if (is("early-send-done") && request->sends) {
    *done = 1;
    if (sizes) sizes[0] = (int)request->sizes[0];
    return ncclSuccess;
  }
  int own_sizes[GROUP] = {0};
  const ncclResult_t result = real->test(request->inner, done, own_sizes);
  if (is("swallows-errors") && result != ncclSuccess) {
    *done = 0;
    return ncclSuccess;
  }
  if (result != ncclSuccess) return result;
  if ((is("error-when-pending") || is("short-retry-time")) && !*done) return ncclRemoteError;
  if (is("early-done") && !request->sends) *done = 1;
  if (is("group-early") && request->n > 1) *done = 1;
  if (!*done) return ncclSuccess;
  if (!request->sends) {
    pthread_mutex_lock(&mutex);
    outstanding--;
    pthread_mutex_unlock(&mutex);
    if (is("writes-past-message")) ((char*)request->data[0])[own_sizes[0]] = 0x55;
  }
  if (is("sizes-not-null")) sizes[0] = 0;
  for (int i = 0; sizes && i < request->n; i++) {
    sizes[i] = own_sizes[i];
    if (is("wrong-size")) sizes[i]++;
    if (is("size-of-receive")) sizes[i] = (int)request->sizes[i];
  }
  if (is("one-size-too-many") && sizes) sizes[request->n] = 0;
  return ncclSuccess;
}

static ncclResult_t irecv_consumed(void* comm, int n, void* request) {
  (void)comm, (void)n, (void)request;
  return ncclInternalError;
}

// loading

__attribute__((constructor)) static void load(void) {
  const char* path = getenv("FAULTY_PLUGIN");
  if (getenv("FAULTY_FAULT")) fault = getenv("FAULTY_FAULT");
  library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  if (!library) {
    fprintf(stderr, "libnccl-net-faulty: FAULTY_PLUGIN names no plugin: %s\n", path ? dlerror() : "it is not set");
    return;
  }
  real = dlsym(library, "ncclNetPlugin_v12");
  const ncclNet_v8_t* eight = dlsym(library, "ncclNetPlugin_v8");
  if (!real || !eight) return;
  ncclNetPlugin_v8 = *eight;
  ncclNetPlugin_v12 = *real;
  ncclNet_v12_t* table = &ncclNetPlugin_v12;
  table->init = init;
  table->devices = devices;
  table->getProperties = get_properties;
  table->listen = listen_at;
  table->connect = connect_to;
  table->accept = accept_one;
  table->regMr = reg_mr;
  table->deregMr = dereg_mr;
  table->isend = isend;
  table->irecv = irecv;
  table->iflush = iflush;
  table->test = test;
  table->closeSend = close_send;
  table->closeRecv = close_recv;
  table->closeListen = close_listen;
  table->finalize = finalize;
  table->makeVDevice = make_vdevice;
  if (is("refuses-consumed")) table->irecvConsumed = irecv_consumed;
}

__attribute__((destructor)) static void unload(void) {
  if (is("dies-at-dlclose")) abort();
  if (library) dlclose(library);
}
