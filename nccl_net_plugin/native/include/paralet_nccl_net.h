/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL's network plugin interface, versions 8 to 12. NCCL's packages ship no header for it, so the project declares it.
 * The names are NCCL's own (ext-net/example/nccl in NCCL's sources). Plain C11 and C++20.
 *
 * First NCCL release that uses a version: 2.20 v8, 2.24 v9, 2.26 v10, 2.28 v11, 2.30 v12. NCCL looks up the symbols
 * ncclNetPlugin_v8 .. ncclNetPlugin_v12 and takes the newest version that it knows.
 *
 * The assertions at the end fix the layout for 64-bit Linux, the only platform of NCCL's plugins.
 */
#ifndef PARALET_NCCL_NET_H_
#define PARALET_NCCL_NET_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN(modernize-use-using): C reads this too */

/* ---- constants ----------------------------------------------------------------------------------------------- */

enum {
  NCCL_NET_HANDLE_MAXSIZE = 128, /* bytes of a connect handle */
  NCCL_NET_MAX_REQUESTS = 32,    /* requests that a comm must hold at once; a send comm maxRecvs times as many */
  NCCL_PROXY_MAX_SUBS = 32,      /* sizes that NCCL makes room for in test() */
  NCCL_NET_MAX_DEVS_PER_NIC_V11 = 4,
  NCCL_NET_MAX_DEVS_PER_NIC_V12 = 8,
  NCCL_NET_TRAFFIC_CLASS_UNDEF = -1,
  NCCL_NET_ATTR_UNDEF = -1,
  NCCL_NET_ID_UNDEF = -1,                /* of railId and planeId */
  NCCL_NET_DEVICE_INVALID_VERSION = 0,   /* netDeviceVersion of NCCL_NET_DEVICE_HOST */
  NCCL_NET_OPTIONAL_RECV_COMPLETION = 1, /* value of *request before irecv: the completion may be dropped */
  NCCL_MAX_NET_SIZE = 1073741824         /* largest message that NCCL passes to v8 */
};

/* Bits of ptrSupport, and the type of registered memory. */
enum { NCCL_PTR_HOST = 0x1, NCCL_PTR_CUDA = 0x2, NCCL_PTR_DMABUF = 0x4 };

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
  ncclTimeout = 8,
  ncclNumResults = 9
} ncclResult_t;

typedef enum {
  NCCL_LOG_NONE = 0,
  NCCL_LOG_VERSION = 1,
  NCCL_LOG_WARN = 2,
  NCCL_LOG_INFO = 3,
  NCCL_LOG_ABORT = 4,
  NCCL_LOG_TRACE = 5
} ncclDebugLogLevel;

/* Bits of a log line's subsystems: those that a network plugin uses. */
enum { NCCL_INIT = 0x1, NCCL_NET = 0x10, NCCL_ENV = 0x80, NCCL_ALL = -1 };

typedef enum { NCCL_NET_DEVICE_HOST = 0, NCCL_NET_DEVICE_UNPACK = 1 } ncclNetDeviceType;

/* ---- callbacks that NCCL passes in ------------------------------------------------------------------------------ */

typedef void (*ncclDebugLogger_t)(ncclDebugLogLevel level, unsigned long flags, const char* file, int line,
                                  const char* fmt, ...);
typedef ncclResult_t (*ncclProfilerCallback_t)(void** eHandle, int type, void* pHandle, int64_t pluginId,
                                               void* extData);

/* ---- small structs ------------------------------------------------------------------------------------------------
 */

typedef struct {
  ncclNetDeviceType netDeviceType;
  int netDeviceVersion;
  void* handle;
  size_t size;
  int needsProxyProgress;
} ncclNetDeviceHandle_v8_t;
typedef ncclNetDeviceHandle_v8_t ncclNetDeviceHandle_v9_t;
typedef ncclNetDeviceHandle_v8_t ncclNetDeviceHandle_v10_t;
typedef ncclNetDeviceHandle_v8_t ncclNetDeviceHandle_v11_t;
typedef ncclNetDeviceHandle_v8_t ncclNetDeviceHandle_v12_t;

typedef struct {
  int ndevs;
  int devs[NCCL_NET_MAX_DEVS_PER_NIC_V11];
} ncclNetVDeviceProps_v9_t;
typedef ncclNetVDeviceProps_v9_t ncclNetVDeviceProps_v10_t;
typedef ncclNetVDeviceProps_v9_t ncclNetVDeviceProps_v11_t;

typedef struct {
  int ndevs;
  int devs[NCCL_NET_MAX_DEVS_PER_NIC_V12];
} ncclNetVDeviceProps_v12_t;

typedef struct {
  int trafficClass; /* NCCL_NET_TRAFFIC_CLASS_UNDEF: none asked for */
} ncclNetCommConfig_v10_t;
typedef ncclNetCommConfig_v10_t ncclNetCommConfig_v11_t;
typedef ncclNetCommConfig_v10_t ncclNetCommConfig_v12_t;

typedef struct {
  int32_t maxConcurrentPeers;
  int32_t minConcurrentPeers;
  int32_t maxFlowsPerPeer;
  int32_t minFlowsPerPeer;
} ncclNetCommAttr_v11_t;
typedef ncclNetCommAttr_v11_t ncclNetCommAttr_v12_t;

typedef struct {
  ncclNetCommAttr_v11_t sendCommAttr;
  ncclNetCommAttr_v11_t recvCommAttr;
  uint32_t op;
  uint32_t algo;
  uint32_t proto;
} ncclNetAttr_v11_t;
typedef ncclNetAttr_v11_t ncclNetAttr_v12_t;

/* ---- properties of a device ---------------------------------------------------------------------------------------
 */

typedef struct {
  char* name;     /* the interface */
  char* pciPath;  /* its PCI device in /sys, NULL when it has none */
  uint64_t guid;  /* one per NIC chip */
  int ptrSupport; /* NCCL_PTR_* bits */
  int regIsGlobal;
  int speed; /* Mbit/s */
  int port;
  float latency; /* microseconds, 0: NCCL's own estimate */
  int maxComms;
  int maxRecvs; /* receives that one irecv may group */
  ncclNetDeviceType netDeviceType;
  int netDeviceVersion;
} ncclNetProperties_v8_t;

typedef struct {
  char* name;
  char* pciPath;
  uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int forceFlush;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  ncclNetDeviceType netDeviceType;
  int netDeviceVersion;
  ncclNetVDeviceProps_v9_t vProps;
  size_t maxP2pBytes;
  size_t maxCollBytes;
} ncclNetProperties_v9_t;
typedef ncclNetProperties_v9_t ncclNetProperties_v10_t;

typedef struct {
  char* name;
  char* pciPath;
  uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int forceFlush;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  ncclNetDeviceType netDeviceType;
  int netDeviceVersion;
  ncclNetVDeviceProps_v11_t vProps;
  size_t maxP2pBytes;
  size_t maxCollBytes;
  int maxMultiRequestSize;
} ncclNetProperties_v11_t;

typedef struct {
  char* name;
  char* pciPath;
  uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int forceFlush;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  ncclNetDeviceType netDeviceType;
  int netDeviceVersion;
  ncclNetVDeviceProps_v12_t vProps;
  size_t maxP2pBytes;
  size_t maxCollBytes;
  int maxMultiRequestSize;
  int16_t railId;
  int16_t planeId;
} ncclNetProperties_v12_t;

/* ---- the tables of calls ------------------------------------------------------------------------------------------
 */

typedef struct {
  const char* name;
  ncclResult_t (*init)(ncclDebugLogger_t logFunction);
  ncclResult_t (*devices)(int* ndev);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v8_t* props);
  ncclResult_t (*listen)(int dev, void* handle, void** listenComm);
  ncclResult_t (*connect)(int dev, void* handle, void** sendComm, ncclNetDeviceHandle_v8_t** sendDevComm);
  ncclResult_t (*accept)(void* listenComm, void** recvComm, ncclNetDeviceHandle_v8_t** recvDevComm);
  ncclResult_t (*regMr)(void* comm, void* data, size_t size, int type, void** mhandle);
  ncclResult_t (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd, void** mhandle);
  ncclResult_t (*deregMr)(void* comm, void* mhandle);
  ncclResult_t (*isend)(void* sendComm, void* data, int size, int tag, void* mhandle, void** request);
  ncclResult_t (*irecv)(void* recvComm, int n, void** data, int* sizes, int* tags, void** mhandles, void** request);
  ncclResult_t (*iflush)(void* recvComm, int n, void** data, int* sizes, void** mhandles, void** request);
  ncclResult_t (*test)(void* request, int* done, int* sizes);
  ncclResult_t (*closeSend)(void* sendComm);
  ncclResult_t (*closeRecv)(void* recvComm);
  ncclResult_t (*closeListen)(void* listenComm);
  ncclResult_t (*getDeviceMr)(void* comm, void* mhandle, void** dptr_mhandle);
  ncclResult_t (*irecvConsumed)(void* recvComm, int n, void* request);
} ncclNet_v8_t;

typedef struct {
  const char* name;
  ncclResult_t (*init)(ncclDebugLogger_t logFunction);
  ncclResult_t (*devices)(int* ndev);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v9_t* props);
  ncclResult_t (*listen)(int dev, void* handle, void** listenComm);
  ncclResult_t (*connect)(int dev, void* handle, void** sendComm, ncclNetDeviceHandle_v9_t** sendDevComm);
  ncclResult_t (*accept)(void* listenComm, void** recvComm, ncclNetDeviceHandle_v9_t** recvDevComm);
  ncclResult_t (*regMr)(void* comm, void* data, size_t size, int type, void** mhandle);
  ncclResult_t (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd, void** mhandle);
  ncclResult_t (*deregMr)(void* comm, void* mhandle);
  ncclResult_t (*isend)(void* sendComm, void* data, size_t size, int tag, void* mhandle, void** request);
  ncclResult_t (*irecv)(void* recvComm, int n, void** data, size_t* sizes, int* tags, void** mhandles, void** request);
  ncclResult_t (*iflush)(void* recvComm, int n, void** data, int* sizes, void** mhandles, void** request);
  ncclResult_t (*test)(void* request, int* done, int* sizes);
  ncclResult_t (*closeSend)(void* sendComm);
  ncclResult_t (*closeRecv)(void* recvComm);
  ncclResult_t (*closeListen)(void* listenComm);
  ncclResult_t (*getDeviceMr)(void* comm, void* mhandle, void** dptr_mhandle);
  ncclResult_t (*irecvConsumed)(void* recvComm, int n, void* request);
  ncclResult_t (*makeVDevice)(int* d, ncclNetVDeviceProps_v9_t* props);
} ncclNet_v9_t;

typedef struct {
  const char* name;
  ncclResult_t (*init)(ncclDebugLogger_t logFunction, ncclProfilerCallback_t profFunction);
  ncclResult_t (*devices)(int* ndev);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v10_t* props);
  ncclResult_t (*listen)(int dev, void* handle, void** listenComm);
  ncclResult_t (*connect)(int dev, ncclNetCommConfig_v10_t* config, void* handle, void** sendComm,
                          ncclNetDeviceHandle_v10_t** sendDevComm);
  ncclResult_t (*accept)(void* listenComm, void** recvComm, ncclNetDeviceHandle_v10_t** recvDevComm);
  ncclResult_t (*regMr)(void* comm, void* data, size_t size, int type, void** mhandle);
  ncclResult_t (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd, void** mhandle);
  ncclResult_t (*deregMr)(void* comm, void* mhandle);
  ncclResult_t (*isend)(void* sendComm, void* data, size_t size, int tag, void* mhandle, void* phandle, void** request);
  ncclResult_t (*irecv)(void* recvComm, int n, void** data, size_t* sizes, int* tags, void** mhandles, void** phandles,
                        void** request);
  ncclResult_t (*iflush)(void* recvComm, int n, void** data, int* sizes, void** mhandles, void** request);
  ncclResult_t (*test)(void* request, int* done, int* sizes);
  ncclResult_t (*closeSend)(void* sendComm);
  ncclResult_t (*closeRecv)(void* recvComm);
  ncclResult_t (*closeListen)(void* listenComm);
  ncclResult_t (*getDeviceMr)(void* comm, void* mhandle, void** dptr_mhandle);
  ncclResult_t (*irecvConsumed)(void* recvComm, int n, void* request);
  ncclResult_t (*makeVDevice)(int* d, ncclNetVDeviceProps_v10_t* props);
} ncclNet_v10_t;

typedef struct {
  const char* name;
  ncclResult_t (*init)(void** ctx, uint64_t commId, ncclNetCommConfig_v11_t* config, ncclDebugLogger_t logFunction,
                       ncclProfilerCallback_t profFunction);
  ncclResult_t (*devices)(int* ndev);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v11_t* props);
  ncclResult_t (*listen)(void* ctx, int dev, void* handle, void** listenComm);
  ncclResult_t (*connect)(void* ctx, int dev, void* handle, void** sendComm, ncclNetDeviceHandle_v11_t** sendDevComm);
  ncclResult_t (*accept)(void* listenComm, void** recvComm, ncclNetDeviceHandle_v11_t** recvDevComm);
  ncclResult_t (*regMr)(void* comm, void* data, size_t size, int type, void** mhandle);
  ncclResult_t (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd, void** mhandle);
  ncclResult_t (*deregMr)(void* comm, void* mhandle);
  ncclResult_t (*isend)(void* sendComm, void* data, size_t size, int tag, void* mhandle, void* phandle, void** request);
  ncclResult_t (*irecv)(void* recvComm, int n, void** data, size_t* sizes, int* tags, void** mhandles, void** phandles,
                        void** request);
  ncclResult_t (*iflush)(void* recvComm, int n, void** data, int* sizes, void** mhandles, void** request);
  ncclResult_t (*test)(void* request, int* done, int* sizes);
  ncclResult_t (*closeSend)(void* sendComm);
  ncclResult_t (*closeRecv)(void* recvComm);
  ncclResult_t (*closeListen)(void* listenComm);
  ncclResult_t (*getDeviceMr)(void* comm, void* mhandle, void** dptr_mhandle);
  ncclResult_t (*irecvConsumed)(void* recvComm, int n, void* request);
  ncclResult_t (*makeVDevice)(int* d, ncclNetVDeviceProps_v11_t* props);
  ncclResult_t (*finalize)(void* ctx);
  ncclResult_t (*setNetAttr)(void* ctx, ncclNetAttr_v11_t* netAttr);
} ncclNet_v11_t;

typedef struct {
  const char* name;
  ncclResult_t (*init)(void** ctx, uint64_t commId, ncclNetCommConfig_v12_t* config, ncclDebugLogger_t logFunction,
                       ncclProfilerCallback_t profFunction);
  ncclResult_t (*devices)(int* ndev);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v12_t* props);
  ncclResult_t (*listen)(void* ctx, int dev, void* handle, void** listenComm);
  ncclResult_t (*connect)(void* ctx, int dev, void* handle, void** sendComm, ncclNetDeviceHandle_v12_t** sendDevComm);
  ncclResult_t (*accept)(void* listenComm, void** recvComm, ncclNetDeviceHandle_v12_t** recvDevComm);
  ncclResult_t (*regMr)(void* comm, void* data, size_t size, int type, void** mhandle);
  ncclResult_t (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd, void** mhandle);
  ncclResult_t (*deregMr)(void* comm, void* mhandle);
  ncclResult_t (*isend)(void* sendComm, void* data, size_t size, int tag, void* mhandle, void* phandle, void** request);
  ncclResult_t (*irecv)(void* recvComm, int n, void** data, size_t* sizes, int* tags, void** mhandles, void** phandles,
                        void** request);
  ncclResult_t (*iflush)(void* recvComm, int n, void** data, int* sizes, void** mhandles, void** request);
  ncclResult_t (*test)(void* request, int* done, int* sizes);
  ncclResult_t (*closeSend)(void* sendComm);
  ncclResult_t (*closeRecv)(void* recvComm);
  ncclResult_t (*closeListen)(void* listenComm);
  ncclResult_t (*getDeviceMr)(void* comm, void* mhandle, void** dptr_mhandle);
  ncclResult_t (*irecvConsumed)(void* recvComm, int n, void* request);
  ncclResult_t (*makeVDevice)(int* d, ncclNetVDeviceProps_v12_t* props);
  ncclResult_t (*finalize)(void* ctx);
  ncclResult_t (*setNetAttr)(void* ctx, ncclNetAttr_v12_t* netAttr);
} ncclNet_v12_t;

/* ---- the layout, byte by byte -------------------------------------------------------------------------------------
 */

#ifdef __cplusplus
#define PARALET_LAYOUT(condition) static_assert(condition, #condition)
#else
#define PARALET_LAYOUT(condition) _Static_assert(condition, #condition)
#endif
#define PARALET_AT(type, field, offset) PARALET_LAYOUT(offsetof(type, field) == (offset))

PARALET_LAYOUT(sizeof(void*) == 8);
PARALET_LAYOUT(sizeof(ncclResult_t) == 4);
PARALET_LAYOUT(sizeof(ncclDebugLogLevel) == 4);
PARALET_LAYOUT(sizeof(ncclNetDeviceType) == 4);
PARALET_LAYOUT(sizeof(ncclNetDeviceHandle_v8_t) == 32);
PARALET_LAYOUT(sizeof(ncclNetVDeviceProps_v9_t) == 20);
PARALET_LAYOUT(sizeof(ncclNetVDeviceProps_v12_t) == 36);
PARALET_LAYOUT(sizeof(ncclNetCommConfig_v10_t) == 4);
PARALET_LAYOUT(sizeof(ncclNetCommAttr_v11_t) == 16);
PARALET_LAYOUT(sizeof(ncclNetAttr_v11_t) == 44);

PARALET_LAYOUT(sizeof(ncclNetProperties_v8_t) == 64);
PARALET_AT(ncclNetProperties_v8_t, guid, 16);
PARALET_AT(ncclNetProperties_v8_t, ptrSupport, 24);
PARALET_AT(ncclNetProperties_v8_t, regIsGlobal, 28);
PARALET_AT(ncclNetProperties_v8_t, speed, 32);
PARALET_AT(ncclNetProperties_v8_t, port, 36);
PARALET_AT(ncclNetProperties_v8_t, latency, 40);
PARALET_AT(ncclNetProperties_v8_t, maxComms, 44);
PARALET_AT(ncclNetProperties_v8_t, maxRecvs, 48);
PARALET_AT(ncclNetProperties_v8_t, netDeviceType, 52);
PARALET_AT(ncclNetProperties_v8_t, netDeviceVersion, 56);

/* v9 to v12 agree up to vProps. */
#define PARALET_PROPERTIES(type)          \
  PARALET_AT(type, guid, 16);             \
  PARALET_AT(type, ptrSupport, 24);       \
  PARALET_AT(type, regIsGlobal, 28);      \
  PARALET_AT(type, forceFlush, 32);       \
  PARALET_AT(type, speed, 36);            \
  PARALET_AT(type, port, 40);             \
  PARALET_AT(type, latency, 44);          \
  PARALET_AT(type, maxComms, 48);         \
  PARALET_AT(type, maxRecvs, 52);         \
  PARALET_AT(type, netDeviceType, 56);    \
  PARALET_AT(type, netDeviceVersion, 60); \
  PARALET_AT(type, vProps, 64)
PARALET_PROPERTIES(ncclNetProperties_v9_t);
PARALET_PROPERTIES(ncclNetProperties_v11_t);
PARALET_PROPERTIES(ncclNetProperties_v12_t);
#undef PARALET_PROPERTIES
PARALET_LAYOUT(sizeof(ncclNetProperties_v9_t) == 104);
PARALET_AT(ncclNetProperties_v9_t, maxP2pBytes, 88);
PARALET_AT(ncclNetProperties_v9_t, maxCollBytes, 96);
PARALET_LAYOUT(sizeof(ncclNetProperties_v11_t) == 112);
PARALET_AT(ncclNetProperties_v11_t, maxP2pBytes, 88);
PARALET_AT(ncclNetProperties_v11_t, maxCollBytes, 96);
PARALET_AT(ncclNetProperties_v11_t, maxMultiRequestSize, 104);
PARALET_LAYOUT(sizeof(ncclNetProperties_v12_t) == 128);
PARALET_AT(ncclNetProperties_v12_t, maxP2pBytes, 104);
PARALET_AT(ncclNetProperties_v12_t, maxCollBytes, 112);
PARALET_AT(ncclNetProperties_v12_t, maxMultiRequestSize, 120);
PARALET_AT(ncclNetProperties_v12_t, railId, 124);
PARALET_AT(ncclNetProperties_v12_t, planeId, 126);

/* The tables agree up to irecvConsumed, field by field. */
#define PARALET_TABLE(type)            \
  PARALET_AT(type, name, 0);           \
  PARALET_AT(type, init, 8);           \
  PARALET_AT(type, devices, 16);       \
  PARALET_AT(type, getProperties, 24); \
  PARALET_AT(type, listen, 32);        \
  PARALET_AT(type, connect, 40);       \
  PARALET_AT(type, accept, 48);        \
  PARALET_AT(type, regMr, 56);         \
  PARALET_AT(type, regMrDmaBuf, 64);   \
  PARALET_AT(type, deregMr, 72);       \
  PARALET_AT(type, isend, 80);         \
  PARALET_AT(type, irecv, 88);         \
  PARALET_AT(type, iflush, 96);        \
  PARALET_AT(type, test, 104);         \
  PARALET_AT(type, closeSend, 112);    \
  PARALET_AT(type, closeRecv, 120);    \
  PARALET_AT(type, closeListen, 128);  \
  PARALET_AT(type, getDeviceMr, 136);  \
  PARALET_AT(type, irecvConsumed, 144)
PARALET_TABLE(ncclNet_v8_t);
PARALET_TABLE(ncclNet_v9_t);
PARALET_TABLE(ncclNet_v10_t);
PARALET_TABLE(ncclNet_v11_t);
PARALET_TABLE(ncclNet_v12_t);
#undef PARALET_TABLE
PARALET_LAYOUT(sizeof(ncclNet_v8_t) == 152);
PARALET_LAYOUT(sizeof(ncclNet_v9_t) == 160);
PARALET_AT(ncclNet_v9_t, makeVDevice, 152);
PARALET_LAYOUT(sizeof(ncclNet_v10_t) == 160);
PARALET_AT(ncclNet_v10_t, makeVDevice, 152);
PARALET_LAYOUT(sizeof(ncclNet_v11_t) == 176);
PARALET_AT(ncclNet_v11_t, makeVDevice, 152);
PARALET_AT(ncclNet_v11_t, finalize, 160);
PARALET_AT(ncclNet_v11_t, setNetAttr, 168);
PARALET_LAYOUT(sizeof(ncclNet_v12_t) == 176);
PARALET_AT(ncclNet_v12_t, makeVDevice, 152);
PARALET_AT(ncclNet_v12_t, finalize, 160);
PARALET_AT(ncclNet_v12_t, setNetAttr, 168);

#undef PARALET_AT
#undef PARALET_LAYOUT

/* NOLINTEND(modernize-use-using) */

#ifdef __cplusplus
}
#endif

#endif /* PARALET_NCCL_NET_H_ */
