// SPDX-License-Identifier: Apache-2.0
// One interface over the vtables of all versions, so that each rule is written once. net.c has the real signatures.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "paralet_nccl_net.h"

enum { FIRST_VERSION = 8, LAST_VERSION = 12, HANDLE_BYTES = 128, MAX_GROUP = 8 };

/// Result of getProperties, with the fields of the newest version. Fields that a version lacks are 0.
struct properties {
  const char* name;
  const char* pci_path;
  uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int device_type;
  int device_version;
  int virtual_devices;
  int first_virtual_device;
  size_t max_p2p_bytes;
  size_t max_coll_bytes;
  int max_multi_request;
  int rail;
  int plane;
  int written_beyond;  ///< the call wrote past the end of the version's struct
};

struct net {
  int version;
  const char* name;
  ncclResult_t (*init)(void** ctx, uint64_t comm_id);
  ncclResult_t (*devices)(int* count);
  ncclResult_t (*get_properties)(int dev, struct properties* properties);
  ncclResult_t (*listen)(void* ctx, int dev, void* handle, void** listen_comm);
  ncclResult_t (*connect)(void* ctx, int dev, void* handle, void** send_comm);
  ncclResult_t (*accept)(void* listen_comm, void** recv_comm);
  ncclResult_t (*reg_mr)(void* comm, void* data, size_t size, int type, void** mr);
  ncclResult_t (*reg_mr_dma_buf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd, void** mr);
  ncclResult_t (*dereg_mr)(void* comm, void* mr);
  /// Versions without profiler handles ignore `phandle`.
  ncclResult_t (*isend)(void* send_comm, void* data, size_t size, int tag, void* mr, void* phandle, void** request);
  ncclResult_t (*irecv)(void* recv_comm, int n, void** data, size_t* sizes, int* tags, void** mrs, void** phandles,
                        void** request);
  ncclResult_t (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** mrs, void** request);
  ncclResult_t (*test)(void* request, int* done, int* sizes);
  ncclResult_t (*close_send)(void* send_comm);
  ncclResult_t (*close_recv)(void* recv_comm);
  ncclResult_t (*close_listen)(void* listen_comm);
  // NULL when the version or the plugin does not have the call.
  ncclResult_t (*irecv_consumed)(void* recv_comm, int n, void* request);
  ncclResult_t (*set_net_attr)(void* ctx);
  ncclResult_t (*make_vdevice)(int* made, int count, const int* devs);
  ncclResult_t (*finalize)(void* ctx);
};

/// The traffic class that init, or connect in version 10, passes on.
extern int traffic_class;

/// Fills `net` from the plugin's vtable of one version. Returns a message when something is missing, else NULL.
const char* net_from_library(struct net* net, void* library, int version);

/// The first difference between the header's structs and NCCL's, or NULL.
const char* layout_difference(void);
