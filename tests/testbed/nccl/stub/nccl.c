/* SPDX-License-Identifier: Apache-2.0
 *
 * The calls of NCCL that testbed.nccl uses. A communicator connects every pair of ranks over the network; operations
 * move slices through buffers that are registered with it, eight in flight, as NCCL's proxy does, and return when all
 * is done.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "stub.h"

STUB_API int paraletGpuStub = 1;

enum { FLOAT32 = 7, SUM = 0, STEPS = 8, SLICE = 512 << 10, CONNECT_S = 60 };

typedef struct {
  char internal[128];
} ncclUniqueId;

/* One direction to or from a peer: its comm, and the memory that its slices pass through. */
struct way {
  void* comm;
  void* memory;
  char* slices;
};

struct ncclComm {
  int rank, ranks;
  struct net net;
  struct way *to, *from; /* by peer */
};

/* A message of a group and how far it has got. Slices are posted in order and done in order. */
struct transfer {
  struct ncclComm* comm;
  bool sends;
  int peer;
  char* data;
  size_t size, posted, done;
  void* requests[STEPS];
  unsigned oldest, next;
};

static _Thread_local struct {
  int depth;
  struct transfer* transfers;
  int count;
} group;

static int version(void) {
  const char* text = getenv("PARALET_STUB_NCCL_VERSION");
  return text == NULL ? 23007 : atoi(text);
}

/* The newest network interface that a release of NCCL knows. */
static int newest_interface(void) {
  int release = version();
  return release >= 23000 ? 12 : release >= 22800 ? 11 : release >= 22600 ? 10 : release >= 22400 ? 9 : 8;
}

static void nap(void) {
  struct timespec time = {.tv_nsec = 20000};
  nanosleep(&time, NULL);
}

STUB_API ncclResult_t ncclGetVersion(int* number) {
  *number = version();
  return ncclSuccess;
}

STUB_API const char* ncclGetErrorString(ncclResult_t result) {
  static const char* const texts[] = {"no error",
                                      "unhandled cuda error",
                                      "unhandled system error",
                                      "internal error",
                                      "invalid argument",
                                      "invalid usage",
                                      "remote process exited or there was a network error"};
  return (unsigned)result < sizeof texts / sizeof *texts ? texts[result] : "unknown result code";
}

STUB_API const char* ncclGetLastError(struct ncclComm* comm) {
  (void)comm;
  return stub_last_warning();
}

STUB_API ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return bootstrap_new_id(id->internal); }

/* Who else is there: ranks of the same host with the same GPU are refused, as by NCCL. */
static ncclResult_t check_peers(struct bootstrap* bootstrap) {
  struct peer {
    char host[128];
  }* peers = calloc((size_t)bootstrap->ranks, sizeof *peers);
  struct peer mine = {0};
  const char* host = getenv("NCCL_HOSTID");
  if (peers == NULL) return ncclSystemError;
  snprintf(mine.host, sizeof mine.host, "%s", host == NULL ? "this host" : host);
  ncclResult_t result = bootstrap_all_gather(bootstrap, &mine, peers, sizeof mine);
  for (int i = 0; result == ncclSuccess && i < bootstrap->ranks; ++i) {
    if (i != bootstrap->rank && strcmp(peers[i].host, mine.host) == 0) {
      WARN(
          "Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this "
          "configuration.");
      result = ncclInvalidUsage;
    }
  }
  free(peers);
  return result;
}

static void log_route(const struct ncclComm* comm, int from, int to, const char* direction) {
  if (stub_fault("no-line")) return;
  if (stub_fault("via-shm")) {
    INFO(NCCL_INIT, "Channel 00 : %d[0] -> %d[0] via SHM/direct/direct", from, to);
  } else {
    INFO(NCCL_INIT | NCCL_NET, "Channel 00/0 : %d[0] -> %d[0] [%s] via NET/%s/0", from, to, direction,
         net_name(&comm->net));
  }
}

static ncclResult_t prepare_way(struct ncclComm* comm, struct way* way) {
  if (posix_memalign((void**)&way->slices, 4096, (size_t)STEPS * SLICE) != 0) return ncclSystemError;
  return net_common(&comm->net)->regMr(way->comm, way->slices, (size_t)STEPS * SLICE, NCCL_PTR_HOST, &way->memory);
}

/* Every rank listens once for every other, tells it the handle, then connects and accepts until all are there. */
static ncclResult_t connect_peers(struct ncclComm* comm, struct bootstrap* bootstrap) {
  typedef char handle_t[NCCL_NET_HANDLE_MAXSIZE];
  size_t ranks = (size_t)comm->ranks;
  handle_t* mine = calloc(ranks, sizeof *mine);
  handle_t* all = calloc(ranks * ranks, sizeof *all);
  void** listeners = calloc(ranks, sizeof *listeners);
  if (mine == NULL || all == NULL || listeners == NULL) return ncclSystemError;
  for (int peer = 0; peer < comm->ranks; ++peer) {
    if (peer == comm->rank) continue;
    CHECK(net_listen(&comm->net, mine[peer], &listeners[peer]));
    log_route(comm, peer, comm->rank, "receive");
    log_route(comm, comm->rank, peer, "send");
  }
  CHECK(bootstrap_all_gather(bootstrap, mine, all, ranks * sizeof *mine));
  time_t deadline = time(NULL) + CONNECT_S;
  for (int missing = 2 * (comm->ranks - 1); missing > 0;) {
    if (time(NULL) > deadline) {
      WARN("connecting over %s took more than %d s", net_name(&comm->net), CONNECT_S);
      return ncclSystemError;
    }
    int before = missing;
    for (int peer = 0; peer < comm->ranks; ++peer) {
      if (peer == comm->rank) continue;
      struct way *to = &comm->to[peer], *from = &comm->from[peer];
      if (to->comm == NULL) {
        CHECK(net_connect(&comm->net, all[(size_t)peer * ranks + (size_t)comm->rank], &to->comm));
        if (to->comm != NULL) --missing;
      }
      if (from->comm == NULL) {
        ncclNetDeviceHandle_v12_t* device = NULL;
        CHECK(net_common(&comm->net)->accept(listeners[peer], &from->comm, &device));
        if (from->comm != NULL) --missing;
      }
    }
    if (missing == before) nap();
  }
  for (int peer = 0; peer < comm->ranks; ++peer) {
    if (peer == comm->rank) continue;
    CHECK(net_common(&comm->net)->closeListen(listeners[peer]));
    CHECK(prepare_way(comm, &comm->to[peer]));
    CHECK(prepare_way(comm, &comm->from[peer]));
  }
  free(listeners);
  free(all);
  free(mine);
  return ncclSuccess;
}

STUB_API ncclResult_t ncclCommInitRank(struct ncclComm** out, int ranks, ncclUniqueId id, int rank) {
  if (rank < 0 || rank >= ranks) return ncclInvalidArgument;
  INFO(NCCL_INIT, "NCCL version %d: paralet's stub, no NCCL and no GPU", version());
  struct ncclComm* comm = calloc(1, sizeof *comm);
  if (comm == NULL) return ncclSystemError;
  comm->rank = rank;
  comm->ranks = ranks;
  comm->to = calloc((size_t)ranks, sizeof *comm->to);
  comm->from = calloc((size_t)ranks, sizeof *comm->from);
  if (comm->to == NULL || comm->from == NULL) return ncclSystemError;
  struct bootstrap bootstrap;
  CHECK(bootstrap_join(&bootstrap, id.internal, rank, ranks));
  CHECK(check_peers(&bootstrap));
  uint64_t comm_id = 0;
  memcpy(&comm_id, id.internal, sizeof comm_id);
  CHECK(net_open(&comm->net, newest_interface(), comm_id));
  INFO(NCCL_INIT, "Using network %s", net_name(&comm->net));
  CHECK(connect_peers(comm, &bootstrap));
  bootstrap_leave(&bootstrap);
  *out = comm;
  return ncclSuccess;
}

STUB_API ncclResult_t ncclCommGetAsyncError(struct ncclComm* comm, ncclResult_t* result) {
  *result = stub_fault("async-error") && comm->rank == 1 ? ncclRemoteError : ncclSuccess;
  if (*result != ncclSuccess) WARN("the network failed, as was asked for");
  return ncclSuccess;
}

static ncclResult_t close_way(struct ncclComm* comm, struct way* way, ncclResult_t (*close_comm)(void*)) {
  if (way->comm == NULL) return ncclSuccess;
  CHECK(net_common(&comm->net)->deregMr(way->comm, way->memory));
  CHECK(close_comm(way->comm));
  free(way->slices);
  return ncclSuccess;
}

STUB_API ncclResult_t ncclCommDestroy(struct ncclComm* comm) {
  for (int peer = 0; peer < comm->ranks; ++peer) {
    CHECK(close_way(comm, &comm->to[peer], net_common(&comm->net)->closeSend));
    CHECK(close_way(comm, &comm->from[peer], net_common(&comm->net)->closeRecv));
  }
  CHECK(net_close(&comm->net));
  free(comm->to);
  free(comm->from);
  free(comm);
  return ncclSuccess;
}

/* Posts a slice if there is one and room for it. */
static ncclResult_t post(struct transfer* transfer) {
  struct ncclComm* comm = transfer->comm;
  while (transfer->posted < transfer->size && transfer->next - transfer->oldest < STEPS) {
    struct way* way = transfer->sends ? &comm->to[transfer->peer] : &comm->from[transfer->peer];
    size_t left = transfer->size - transfer->posted, size = left < SLICE ? left : SLICE;
    char* slice = way->slices + (size_t)(transfer->next % STEPS) * SLICE;
    void** request = &transfer->requests[transfer->next % STEPS];
    *request = NULL;
    if (transfer->sends) {
      memcpy(slice, transfer->data + transfer->posted, size);
      CHECK(net_isend(&comm->net, way->comm, slice, size, 0, way->memory, request));
    } else {
      CHECK(net_irecv(&comm->net, way->comm, slice, size, 0, way->memory, request));
    }
    if (*request == NULL) break; /* no room now */
    transfer->posted += size;
    ++transfer->next;
  }
  return ncclSuccess;
}

/* Takes note of slices that are done. */
static ncclResult_t test(struct transfer* transfer) {
  struct ncclComm* comm = transfer->comm;
  while (transfer->oldest != transfer->next) {
    int done = 0, size = -1;
    CHECK(net_common(&comm->net)->test(transfer->requests[transfer->oldest % STEPS], &done, &size));
    if (!done) break;
    size_t left = transfer->size - transfer->done, expected = left < SLICE ? left : SLICE;
    if (!transfer->sends) {
      if (size < 0 || (size_t)size != expected) {
        WARN("rank %d received %d bytes from rank %d where %zu were sent", comm->rank, size, transfer->peer, expected);
        return ncclInternalError;
      }
      char* slice = comm->from[transfer->peer].slices + (size_t)(transfer->oldest % STEPS) * SLICE;
      memcpy(transfer->data + transfer->done, slice, expected);
    }
    transfer->done += expected;
    ++transfer->oldest;
  }
  return ncclSuccess;
}

/* What a rank sends to itself: the k-th send meets the k-th receive. */
static ncclResult_t move_own(struct transfer* transfers, int count) {
  for (int s = 0, r = 0; s < count; ++s) {
    struct transfer* send = &transfers[s];
    if (!send->sends || send->peer != send->comm->rank) continue;
    while (r < count && (transfers[r].sends || transfers[r].peer != send->comm->rank)) ++r;
    if (r == count || transfers[r].size != send->size) return ncclInvalidUsage;
    memmove(transfers[r].data, send->data, send->size);
    send->done = transfers[r++].done = send->size;
  }
  return ncclSuccess;
}

/* An earlier transfer of the group still uses the same slices. */
static bool must_wait(const struct transfer* transfers, int i) {
  for (int j = 0; j < i; ++j) {
    bool same = transfers[j].sends == transfers[i].sends && transfers[j].peer == transfers[i].peer;
    if (same && transfers[j].done < transfers[j].size) return true;
  }
  return false;
}

static ncclResult_t run(struct transfer* transfers, int count) {
  CHECK(move_own(transfers, count));
  for (int open = count; open > 0;) {
    size_t before = 0, after = 0;
    open = 0;
    for (int i = 0; i < count; ++i) {
      if (transfers[i].done == transfers[i].size) continue;
      if (must_wait(transfers, i)) {
        ++open;
        continue;
      }
      before += transfers[i].done + transfers[i].posted;
      CHECK(post(&transfers[i]));
      CHECK(test(&transfers[i]));
      after += transfers[i].done + transfers[i].posted;
      if (transfers[i].done < transfers[i].size) ++open;
    }
    if (open > 0 && before == after) nap();
  }
  return ncclSuccess;
}

static ncclResult_t add(struct ncclComm* comm, bool sends, int peer, const void* data, size_t size) {
  if (peer < 0 || peer >= comm->ranks) return ncclInvalidArgument;
  struct transfer* more = realloc(group.transfers, (size_t)(group.count + 1) * sizeof *more);
  if (more == NULL) return ncclSystemError;
  group.transfers = more;
  more[group.count++] =
      (struct transfer){.comm = comm, .sends = sends, .peer = peer, .data = (char*)data, .size = size};
  return ncclSuccess;
}

static ncclResult_t flush(void) {
  ncclResult_t result = run(group.transfers, group.count);
  free(group.transfers);
  group.transfers = NULL;
  group.count = 0;
  return result;
}

/* What an operation may be made to do wrong, for tests of who calls it; always on rank 1. */
static void spoil(const struct ncclComm* comm, void* result, size_t size) {
  if (comm->rank != 1) return;
  if (stub_fault("wrong-result") && size > 0) ((char*)result)[size / 2] ^= 1;
  if (stub_fault("past-end")) ((char*)result)[size] ^= 1;
  if (stub_fault("crash")) abort();
  if (stub_fault("hang")) pause();
}

STUB_API ncclResult_t ncclGroupStart(void) {
  ++group.depth;
  return ncclSuccess;
}

STUB_API ncclResult_t ncclGroupEnd(void) {
  if (group.depth == 0) return ncclInvalidUsage;
  return --group.depth > 0 ? ncclSuccess : flush();
}

STUB_API ncclResult_t ncclSend(const void* data, size_t count, int type, int peer, struct ncclComm* comm,
                               void* stream) {
  (void)stream;
  if (type != FLOAT32) return ncclInvalidArgument;
  CHECK(add(comm, true, peer, data, count * sizeof(float)));
  return group.depth > 0 ? ncclSuccess : flush();
}

STUB_API ncclResult_t ncclRecv(void* data, size_t count, int type, int peer, struct ncclComm* comm, void* stream) {
  (void)stream;
  if (type != FLOAT32) return ncclInvalidArgument;
  CHECK(add(comm, false, peer, data, count * sizeof(float)));
  return group.depth > 0 ? ncclSuccess : flush();
}

/* Element where the block of `rank` begins, when `count` elements are dealt to all ranks. */
static size_t block(const struct ncclComm* comm, size_t count, int rank) {
  size_t each = (count + (size_t)comm->ranks - 1) / (size_t)comm->ranks, begin = each * (size_t)rank;
  return begin < count ? begin : count;
}

/* recv = the sum of everybody's block of this rank. */
static ncclResult_t reduce_blocks(struct ncclComm* comm, const float* send, float* recv, size_t count) {
  size_t begin = block(comm, count, comm->rank), mine = block(comm, count, comm->rank + 1) - begin;
  float* parts = malloc(mine * (size_t)comm->ranks * sizeof(float) + 1);
  if (parts == NULL) return ncclSystemError;
  for (int peer = 0; peer < comm->ranks; ++peer) {
    size_t theirs = block(comm, count, peer);
    CHECK(add(comm, true, peer, send + theirs, (block(comm, count, peer + 1) - theirs) * sizeof(float)));
    CHECK(add(comm, false, peer, parts + mine * (size_t)peer, mine * sizeof(float)));
  }
  CHECK(flush());
  for (size_t i = 0; i < mine; ++i) {
    float sum = parts[i];
    for (int peer = 1; peer < comm->ranks; ++peer) sum += parts[mine * (size_t)peer + i];
    recv[i] = sum;
  }
  free(parts);
  return ncclSuccess;
}

/* Everybody's block, to everybody. */
static ncclResult_t share_blocks(struct ncclComm* comm, const float* mine, float* recv, size_t count) {
  size_t begin = block(comm, count, comm->rank), length = block(comm, count, comm->rank + 1) - begin;
  for (int peer = 0; peer < comm->ranks; ++peer) {
    size_t theirs = block(comm, count, peer);
    CHECK(add(comm, true, peer, mine, length * sizeof(float)));
    CHECK(add(comm, false, peer, recv + theirs, (block(comm, count, peer + 1) - theirs) * sizeof(float)));
  }
  return flush();
}

STUB_API ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, int type, int op, struct ncclComm* comm,
                                    void* stream) {
  (void)stream;
  if (type != FLOAT32 || op != SUM) return ncclInvalidArgument;
  float* mine = (float*)recv + block(comm, count, comm->rank);
  CHECK(reduce_blocks(comm, send, mine, count));
  CHECK(share_blocks(comm, mine, recv, count));
  spoil(comm, recv, count * sizeof(float));
  return ncclSuccess;
}

STUB_API ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, int type, struct ncclComm* comm,
                                    void* stream) {
  (void)stream;
  if (type != FLOAT32) return ncclInvalidArgument;
  CHECK(share_blocks(comm, send, recv, count * (size_t)comm->ranks));
  spoil(comm, recv, count * (size_t)comm->ranks * sizeof(float));
  return ncclSuccess;
}

STUB_API ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, int type, int op,
                                        struct ncclComm* comm, void* stream) {
  (void)stream;
  if (type != FLOAT32 || op != SUM) return ncclInvalidArgument;
  CHECK(reduce_blocks(comm, send, recv, count * (size_t)comm->ranks));
  spoil(comm, recv, count * sizeof(float));
  return ncclSuccess;
}
