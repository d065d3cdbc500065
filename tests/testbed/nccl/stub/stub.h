/* SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in for NCCL where there is no GPU: the calls that testbed.nccl uses, on host memory, through the vtable of a
 * real network plugin. It keeps NCCL's rules of loading plugins and logs the lines that NCCL logs; it measures nothing.
 */
#ifndef PARALET_GPU_STUB_H_
#define PARALET_GPU_STUB_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "paralet_nccl_net.h"

#define STUB_API __attribute__((visibility("default")))

/* By this symbol testbed.nccl knows that there is no GPU behind the library. */
extern int paraletGpuStub;

/* ---- log.c ---- */

void stub_log(ncclDebugLogLevel level, unsigned long flags, const char* file, int line, const char* format, ...)
    __attribute__((format(printf, 5, 6)));
#define INFO(flags, ...) stub_log(NCCL_LOG_INFO, flags, __FILE__, __LINE__, __VA_ARGS__)
#define WARN(...) stub_log(NCCL_LOG_WARN, (unsigned long)NCCL_ALL, __FILE__, __LINE__, __VA_ARGS__)
/* The last warning, for ncclGetLastError. */
const char* stub_last_warning(void);

/* The fault that PARALET_STUB_FAULT asks for, if this is it. */
bool stub_fault(const char* name);

#define CHECK(call)                             \
  do {                                          \
    ncclResult_t result_ = (call);              \
    if (result_ != ncclSuccess) return result_; \
  } while (0)

/* ---- net.c: a network, whatever version of the interface it speaks ---- */

struct net {
  int version;
  const void* table; /* ncclNet_v8_t .. ncclNet_v12_t */
  void* library;     /* of dlopen; NULL: built in */
  void* context;
};

/* NCCL's rules: NCCL_NET_PLUGIN lists libraries, NCCL_NET chooses by name; `newest` is the newest interface known. */
ncclResult_t net_open(struct net* net, int newest, uint64_t comm_id);
ncclResult_t net_close(struct net* net);
const char* net_name(const struct net* net);
ncclResult_t net_listen(struct net* net, void* handle, void** listen_comm);
ncclResult_t net_connect(struct net* net, void* handle, void** send_comm);
ncclResult_t net_isend(struct net* net, void* comm, void* data, size_t size, int tag, void* memory, void** request);
ncclResult_t net_irecv(struct net* net, void* comm, void* data, size_t size, int tag, void* memory, void** request);
/* The part of the table that is the same in every version. */
const ncclNet_v12_t* net_common(const struct net* net);

/* ---- socket_net.c ---- */

extern const ncclNet_v12_t stub_socket_net;

/* ---- bootstrap.c: how ranks find each other ---- */

struct bootstrap {
  int rank, ranks;
  int* sockets; /* rank 0: one per other rank; else sockets[0] leads to rank 0 */
};

ncclResult_t bootstrap_new_id(char id[128]);
ncclResult_t bootstrap_join(struct bootstrap* bootstrap, const char id[128], int rank, int ranks);
/* Everybody gets everybody's `size` bytes, in order of rank. */
ncclResult_t bootstrap_all_gather(struct bootstrap* bootstrap, const void* mine, void* all, size_t size);
void bootstrap_leave(struct bootstrap* bootstrap);

#endif
