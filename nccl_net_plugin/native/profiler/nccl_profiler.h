/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL's profiler plugin interface, version 5, which NCCL 2.28 and later load. NCCL's packages ship no header for it,
 * so the project declares what it needs. Version 4 is left out, because NCCL 2.27 would load it: NCCL 2.27.7 crashes
 * when a net plugin reports an event of a receive. The names are NCCL's own (ext-profiler in NCCL's sources). C11 and
 * C++20.
 *
 * The assertions at the end fix the layout for 64-bit Linux.
 */
#ifndef PARALET_NCCL_PROFILER_H_
#define PARALET_NCCL_PROFILER_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "paralet_nccl_net.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN(modernize-use-using): C reads this too */

/* Types of events, and the bits of the activation mask. */
enum {
  ncclProfileGroup = 1 << 0,
  ncclProfileColl = 1 << 1,
  ncclProfileP2p = 1 << 2,
  ncclProfileProxyOp = 1 << 3,
  ncclProfileProxyStep = 1 << 4,
  ncclProfileNetPlugin = 1 << 7
};

/* States of a step, and the update that a net plugin sends with its data. */
typedef enum {
  ncclProfilerProxyStepSendGPUWait = 8,
  ncclProfilerProxyStepSendWait = 9,
  ncclProfilerProxyStepRecvWait = 10,
  ncclProfilerProxyStepRecvFlushWait = 11,
  ncclProfilerProxyStepRecvGPUWait = 12,
  ncclProfilerProxyStepSendPeerWait_v4 = 20,
  ncclProfilerNetPluginUpdate = 21
} ncclProfilerEventState_v5_t;

/* Types without names in a union without one, as NCCL declares them. */
#ifdef __clang__
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wnested-anon-types"
#endif
typedef struct {
  uint64_t type;
  void* parentObj; /* handle of the event above: group, operation, proxy operation, step */
  int rank;
  union {
    struct {
      uint64_t seqNumber; /* counts the operations with this function in the communicator */
      const char* func;
      void const* sendBuff;
      void* recvBuff;
      size_t count;
      int root;
      const char* datatype;
      uint8_t nChannels;
      uint8_t nWarps;
      const char* algo;
      const char* proto;
      void* parentGroup;
    } coll;
    struct {
      const char* func;
      void* buff;
      const char* datatype;
      size_t count;
      int peer;
      uint8_t nChannels;
      void* parentGroup;
    } p2p;
    struct {
      pid_t pid; /* of the process whose operation it is: with PXN another one */
      uint8_t channelId;
      int peer;
      int nSteps;
      int chunkSize;
      int isSend;
    } proxyOp;
    struct {
      int step;
    } proxyStep;
    struct {
      int64_t id;
      void* data;
    } netPlugin;
  };
} ncclProfilerEventDescr_v5_t;
#ifdef __clang__
#pragma clang diagnostic pop
#endif

typedef union {
  struct {
    size_t transSize;
  } proxyStep;
  struct {
    void* data;
  } netPlugin;
} ncclProfilerEventStateArgs_v5_t;

typedef struct {
  const char* name;
  ncclResult_t (*init)(void** context, uint64_t commId, int* eActivationMask, const char* commName, int nNodes,
                       int nranks, int rank, ncclDebugLogger_t logfn);
  ncclResult_t (*startEvent)(void* context, void** eHandle, ncclProfilerEventDescr_v5_t* eDescr);
  ncclResult_t (*stopEvent)(void* eHandle);
  ncclResult_t (*recordEventState)(void* eHandle, ncclProfilerEventState_v5_t eState,
                                   ncclProfilerEventStateArgs_v5_t* eStateArgs);
  ncclResult_t (*finalize)(void* context);
} ncclProfiler_v5_t;

/* NOLINTEND(modernize-use-using) */

#ifdef __cplusplus
}
static_assert(sizeof(ncclProfilerEventDescr_v5_t) == 112, "the layout is part of the interface");
static_assert(offsetof(ncclProfilerEventDescr_v5_t, coll.algo) == 88, "the layout is part of the interface");
static_assert(sizeof(ncclProfilerEventStateArgs_v5_t) == 8, "the layout is part of the interface");
static_assert(sizeof(ncclProfiler_v5_t) == 48, "the layout is part of the interface");
#endif

#endif /* PARALET_NCCL_PROFILER_H_ */
