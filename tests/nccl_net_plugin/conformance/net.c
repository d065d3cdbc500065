// SPDX-License-Identifier: Apache-2.0
#include "net.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "log.h"

int traffic_class = NCCL_NET_TRAFFIC_CLASS_UNDEF;

// One version is loaded at a time. Where versions differ in a signature, the plugin's function is stored here under the
// first version with that signature, and an adapter below has the common signature.
static struct {
  ncclResult_t (*init_v8)(ncclDebugLogger_t);
  ncclResult_t (*init_v10)(ncclDebugLogger_t, ncclProfilerCallback_t);
  ncclResult_t (*init_v11)(void**, uint64_t, ncclNetCommConfig_v11_t*, ncclDebugLogger_t, ncclProfilerCallback_t);
  ncclResult_t (*properties_v8)(int, ncclNetProperties_v8_t*);
  ncclResult_t (*properties_v9)(int, ncclNetProperties_v9_t*);
  ncclResult_t (*properties_v10)(int, ncclNetProperties_v10_t*);
  ncclResult_t (*properties_v11)(int, ncclNetProperties_v11_t*);
  ncclResult_t (*properties_v12)(int, ncclNetProperties_v12_t*);
  ncclResult_t (*listen_v8)(int, void*, void**);
  ncclResult_t (*connect_v8)(int, void*, void**, ncclNetDeviceHandle_v8_t**);
  ncclResult_t (*connect_v10)(int, ncclNetCommConfig_v10_t*, void*, void**, ncclNetDeviceHandle_v10_t**);
  ncclResult_t (*connect_v11)(void*, int, void*, void**, ncclNetDeviceHandle_v11_t**);
  ncclResult_t (*accept_v8)(void*, void**, ncclNetDeviceHandle_v8_t**);
  ncclResult_t (*isend_v8)(void*, void*, int, int, void*, void**);
  ncclResult_t (*isend_v9)(void*, void*, size_t, int, void*, void**);
  ncclResult_t (*irecv_v8)(void*, int, void**, int*, int*, void**, void**);
  ncclResult_t (*irecv_v9)(void*, int, void**, size_t*, int*, void**, void**);
  ncclResult_t (*attr_v11)(void*, ncclNetAttr_v11_t*);
  ncclResult_t (*vdevice_v9)(int*, ncclNetVDeviceProps_v9_t*);
  ncclResult_t (*vdevice_v12)(int*, ncclNetVDeviceProps_v12_t*);
} real;

static ncclResult_t init_v8(void** ctx, uint64_t comm_id) {
  (void)comm_id;
  *ctx = NULL;
  return real.init_v8(log_write);
}

static ncclResult_t init_v10(void** ctx, uint64_t comm_id) {
  (void)comm_id;
  *ctx = NULL;
  return real.init_v10(log_write, profiler_call);
}

static ncclResult_t init_v11(void** ctx, uint64_t comm_id) {
  ncclNetCommConfig_v11_t config = {traffic_class};  // on the stack, as in NCCL: invalid after init returns
  return real.init_v11(ctx, comm_id, &config, log_write, profiler_call);
}

// Fields of every version.
#define COMMON_PROPERTIES                                                                                             \
  .name = answer.p.name, .pci_path = answer.p.pciPath, .guid = answer.p.guid, .ptr_support = answer.p.ptrSupport,     \
  .reg_is_global = answer.p.regIsGlobal, .speed = answer.p.speed, .port = answer.p.port, .latency = answer.p.latency, \
  .max_comms = answer.p.maxComms, .max_recvs = answer.p.maxRecvs, .device_type = (int)answer.p.netDeviceType,         \
  .device_version = answer.p.netDeviceVersion, .written_beyond = memcmp(answer.beyond, pristine, sizeof pristine) != 0
#define PROPERTIES_SINCE_V9                                                               \
  .force_flush = answer.p.forceFlush, .virtual_devices = answer.p.vProps.ndevs,           \
  .first_virtual_device = answer.p.vProps.devs[0], .max_p2p_bytes = answer.p.maxP2pBytes, \
  .max_coll_bytes = answer.p.maxCollBytes

static const char pristine[64] = {0};

#define DEFINE_PROPERTIES(VERSION, ...)                                               \
  static ncclResult_t properties_v##VERSION(int dev, struct properties* properties) { \
    struct {                                                                          \
      ncclNetProperties_v##VERSION##_t p;                                             \
      char beyond[sizeof pristine];                                                   \
    } answer = {0};                                                                   \
    const ncclResult_t result = real.properties_v##VERSION(dev, &answer.p);           \
    *properties = (struct properties){__VA_ARGS__};                                   \
    return result;                                                                    \
  }

DEFINE_PROPERTIES(8, COMMON_PROPERTIES)
DEFINE_PROPERTIES(9, COMMON_PROPERTIES, PROPERTIES_SINCE_V9)
DEFINE_PROPERTIES(10, COMMON_PROPERTIES, PROPERTIES_SINCE_V9)
DEFINE_PROPERTIES(11, COMMON_PROPERTIES, PROPERTIES_SINCE_V9, .max_multi_request = answer.p.maxMultiRequestSize)
DEFINE_PROPERTIES(12, COMMON_PROPERTIES, PROPERTIES_SINCE_V9, .max_multi_request = answer.p.maxMultiRequestSize,
                  .rail = answer.p.railId, .plane = answer.p.planeId)

static ncclResult_t listen_v8(void* ctx, int dev, void* handle, void** listen_comm) {
  (void)ctx;
  return real.listen_v8(dev, handle, listen_comm);
}

// NCCL passes the address of a device handle and uses what the plugin stores there; a plugin without device offload
// stores nothing. NCCL passes NULL when it only checks for GPU memory support. Calls alternate between the two.
static _Thread_local ncclNetDeviceHandle_v8_t* offload;
static _Thread_local unsigned calls;

static ncclNetDeviceHandle_v8_t** device_handle(void) {
  offload = NULL;
  return calls++ % 2 ? NULL : &offload;
}

static ncclResult_t unless_offloaded(ncclResult_t result) {
  return result == ncclSuccess && offload ? ncclInternalError : result;
}

static ncclResult_t connect_v8(void* ctx, int dev, void* handle, void** send_comm) {
  (void)ctx;
  return unless_offloaded(real.connect_v8(dev, handle, send_comm, device_handle()));
}

static ncclResult_t connect_v10(void* ctx, int dev, void* handle, void** send_comm) {
  (void)ctx;
  ncclNetCommConfig_v10_t config = {traffic_class};
  return unless_offloaded(real.connect_v10(dev, &config, handle, send_comm, device_handle()));
}

static ncclResult_t connect_v11(void* ctx, int dev, void* handle, void** send_comm) {
  return unless_offloaded(real.connect_v11(ctx, dev, handle, send_comm, device_handle()));
}

static ncclResult_t accept_v8(void* listen_comm, void** recv_comm) {
  return unless_offloaded(real.accept_v8(listen_comm, recv_comm, device_handle()));
}

static ncclResult_t isend_v8(void* comm, void* data, size_t size, int tag, void* mr, void* phandle, void** request) {
  (void)phandle;
  if (size > INT_MAX) return ncclInvalidArgument;
  return real.isend_v8(comm, data, (int)size, tag, mr, request);
}

static ncclResult_t isend_v9(void* comm, void* data, size_t size, int tag, void* mr, void* phandle, void** request) {
  (void)phandle;
  return real.isend_v9(comm, data, size, tag, mr, request);
}

static ncclResult_t irecv_v8(void* comm, int n, void** data, size_t* sizes, int* tags, void** mrs, void** phandles,
                             void** request) {
  (void)phandles;
  int narrow[MAX_GROUP] = {0};
  for (int i = 0; i < n && i < MAX_GROUP; i++) narrow[i] = (int)sizes[i];
  return real.irecv_v8(comm, n, data, narrow, tags, mrs, request);
}

static ncclResult_t irecv_v9(void* comm, int n, void** data, size_t* sizes, int* tags, void** mrs, void** phandles,
                             void** request) {
  (void)phandles;
  return real.irecv_v9(comm, n, data, sizes, tags, mrs, request);
}

/// First as for an all-to-all among many ranks, then with nothing defined.
static ncclResult_t attr_v11(void* ctx) {
  ncclNetAttr_v11_t attributes;
  memset(&attributes, -1, sizeof attributes);
  attributes.sendCommAttr = attributes.recvCommAttr = (ncclNetCommAttr_v11_t){512, 1, 2, 1};
  const ncclResult_t result = real.attr_v11(ctx, &attributes);
  memset(&attributes, -1, sizeof attributes);
  const ncclResult_t second = real.attr_v11(ctx, &attributes);
  return result != ncclSuccess ? result : second;
}

// A list longer than the array is passed with its length alone.
#define DEFINE_VDEVICE(VERSION)                                                   \
  static ncclResult_t vdevice_v##VERSION(int* made, int count, const int* devs) { \
    ncclNetVDeviceProps_v##VERSION##_t list = {.ndevs = count};                   \
    const int room = (int)(sizeof list.devs / sizeof *list.devs);                 \
    for (int i = 0; i < count && i < room; i++) list.devs[i] = devs[i];           \
    return real.vdevice_v##VERSION(made, &list);                                  \
  }

DEFINE_VDEVICE(9)
DEFINE_VDEVICE(12)

/// Calls with the same name in every version.
#define TAKE_COMMON(TABLE, VERSION)                                                                                  \
  do {                                                                                                               \
    if (!(TABLE)->name || !*(TABLE)->name) return "its name is empty";                                               \
    if (!(TABLE)->init || !(TABLE)->devices || !(TABLE)->getProperties || !(TABLE)->listen || !(TABLE)->connect ||   \
        !(TABLE)->accept || !(TABLE)->regMr || !(TABLE)->deregMr || !(TABLE)->isend || !(TABLE)->irecv ||            \
        !(TABLE)->iflush || !(TABLE)->test || !(TABLE)->closeSend || !(TABLE)->closeRecv || !(TABLE)->closeListen) { \
      return "a function that NCCL calls without a check is NULL";                                                   \
    }                                                                                                                \
    *net = (struct net){.version = (VERSION),                                                                        \
                        .name = (TABLE)->name,                                                                       \
                        .devices = (TABLE)->devices,                                                                 \
                        .get_properties = properties_v##VERSION,                                                     \
                        .accept = accept_v8,                                                                         \
                        .reg_mr = (TABLE)->regMr,                                                                    \
                        .reg_mr_dma_buf = (TABLE)->regMrDmaBuf,                                                      \
                        .dereg_mr = (TABLE)->deregMr,                                                                \
                        .iflush = (TABLE)->iflush,                                                                   \
                        .test = (TABLE)->test,                                                                       \
                        .close_send = (TABLE)->closeSend,                                                            \
                        .close_recv = (TABLE)->closeRecv,                                                            \
                        .close_listen = (TABLE)->closeListen,                                                        \
                        .irecv_consumed = (TABLE)->irecvConsumed};                                                   \
    real.properties_v##VERSION = (TABLE)->getProperties;                                                             \
    real.accept_v8 = (TABLE)->accept;                                                                                \
  } while (0)

static const char* take_v8(struct net* net, const ncclNet_v8_t* table) {
  TAKE_COMMON(table, 8);
  real.init_v8 = table->init, net->init = init_v8;
  real.listen_v8 = table->listen, net->listen = listen_v8;
  real.connect_v8 = table->connect, net->connect = connect_v8;
  real.isend_v8 = table->isend, net->isend = isend_v8;
  real.irecv_v8 = table->irecv, net->irecv = irecv_v8;
  return NULL;
}

static const char* take_v9(struct net* net, const ncclNet_v9_t* table) {
  TAKE_COMMON(table, 9);
  real.init_v8 = table->init, net->init = init_v8;
  real.listen_v8 = table->listen, net->listen = listen_v8;
  real.connect_v8 = table->connect, net->connect = connect_v8;
  real.isend_v9 = table->isend, net->isend = isend_v9;
  real.irecv_v9 = table->irecv, net->irecv = irecv_v9;
  if (table->makeVDevice) real.vdevice_v9 = table->makeVDevice, net->make_vdevice = vdevice_v9;
  return NULL;
}

static const char* take_v10(struct net* net, const ncclNet_v10_t* table) {
  TAKE_COMMON(table, 10);
  real.init_v10 = table->init, net->init = init_v10;
  real.listen_v8 = table->listen, net->listen = listen_v8;
  real.connect_v10 = table->connect, net->connect = connect_v10;
  net->isend = table->isend;
  net->irecv = table->irecv;
  if (table->makeVDevice) real.vdevice_v9 = table->makeVDevice, net->make_vdevice = vdevice_v9;
  return NULL;
}

static const char* take_v11(struct net* net, const ncclNet_v11_t* table) {
  TAKE_COMMON(table, 11);
  if (!table->finalize) return "finalize is NULL, and NCCL calls it without a check";
  real.init_v11 = table->init, net->init = init_v11;
  net->listen = table->listen;
  real.connect_v11 = table->connect, net->connect = connect_v11;
  net->isend = table->isend;
  net->irecv = table->irecv;
  net->finalize = table->finalize;
  if (table->setNetAttr) real.attr_v11 = table->setNetAttr, net->set_net_attr = attr_v11;
  if (table->makeVDevice) real.vdevice_v9 = table->makeVDevice, net->make_vdevice = vdevice_v9;
  return NULL;
}

static const char* take_v12(struct net* net, const ncclNet_v12_t* table) {
  TAKE_COMMON(table, 12);
  if (!table->finalize) return "finalize is NULL, and NCCL calls it without a check";
  real.init_v11 = table->init, net->init = init_v11;
  net->listen = table->listen;
  real.connect_v11 = table->connect, net->connect = connect_v11;
  net->isend = table->isend;
  net->irecv = table->irecv;
  net->finalize = table->finalize;
  if (table->setNetAttr) real.attr_v11 = table->setNetAttr, net->set_net_attr = attr_v11;
  if (table->makeVDevice) real.vdevice_v12 = table->makeVDevice, net->make_vdevice = vdevice_v12;
  return NULL;
}

const char* net_from_library(struct net* net, void* library, int version) {
  char symbol[32];
  snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", version);
  const void* table = dlsym(library, symbol);
  if (!table) return "the symbol is not exported";
  switch (version) {
    case 8:
      return take_v8(net, table);
    case 9:
      return take_v9(net, table);
    case 10:
      return take_v10(net, table);
    case 11:
      return take_v11(net, table);
    case 12:
      return take_v12(net, table);
    default:
      return "no such version";
  }
}
