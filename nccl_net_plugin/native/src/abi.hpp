// SPDX-License-Identifier: Apache-2.0
// The C boundary. Every call of NCCL ends here, in the newest version's form. Arguments are checked, and no exception
// crosses the boundary. shims.cpp adapts older forms and fills the tables of calls.
#pragma once

#include <cstdint>

#include "paralet_nccl_net.h"

namespace paralet::plugin::abi {

inline constexpr const char* kName = "paralet";  // as in NCCL_NET=paralet

/// `context` is nullptr in versions 8 to 10, which have no contexts: the plugin then stays open until the process ends.
ncclResult_t init(void** context, const ncclNetCommConfig_v12_t* config, ncclDebugLogger_t logger,
                  ncclProfilerCallback_t profiler) noexcept;
ncclResult_t finalize(void* context) noexcept;
ncclResult_t devices(int* count) noexcept;
ncclResult_t properties(int device, ncclNetProperties_v12_t* out) noexcept;
/// `count` devices, of which `out` gets the number.
ncclResult_t make_fused(const int* members, int count, int* out) noexcept;
ncclResult_t set_net_attr(void* context, const ncclNetAttr_v12_t* attributes) noexcept;
// `context` is nullptr in versions 8 to 10. Only version 10 passes a configuration to connect.
ncclResult_t listen(void* context, int device, void* handle, void** comm) noexcept;
ncclResult_t connect(void* context, int device, const ncclNetCommConfig_v12_t* config, void* handle,
                     void** comm) noexcept;
ncclResult_t accept(void* listen_comm, void** comm) noexcept;
ncclResult_t reg_mr(void* comm, void* data, std::size_t size, int type, void** memory) noexcept;
ncclResult_t reg_mr_dmabuf(void* comm, void* data, std::size_t size, int type, std::uint64_t offset, int fd,
                           void** memory) noexcept;
ncclResult_t dereg_mr(void* comm, void* memory) noexcept;
ncclResult_t isend(void* comm, void* data, std::size_t size, int tag, void* memory, void* profiled,
                   void** request) noexcept;
/// `profiled` is NCCL's handle for events about the message, or nullptr. `Size` is int in version 8 and size_t in later
/// versions.
template <typename Size>
ncclResult_t irecv(void* comm, int n, void** data, const Size* sizes, const int* tags, void** memories, void** profiled,
                   void** request) noexcept;
ncclResult_t iflush(void* comm, int n, void** data, int* sizes, void** memories, void** request) noexcept;
ncclResult_t test(void* request, int* done, int* sizes) noexcept;
ncclResult_t close_send(void* comm) noexcept;
ncclResult_t close_recv(void* comm) noexcept;
ncclResult_t close_listen(void* comm) noexcept;

/// The same for the list of any version.
template <typename Members>
ncclResult_t make_vdevice(int* out, Members* members) noexcept {
  if (members == nullptr) return ncclInvalidArgument;
  return make_fused(members->devs, members->ndevs, out);
}

/// Fills the properties of any version: those fields of the newest version that it has.
template <typename Properties>
ncclResult_t properties_of(int device, Properties* out) noexcept {
  if (out == nullptr) return ncclInvalidArgument;
  ncclNetProperties_v12_t all;
  const ncclResult_t result = properties(device, &all);
  if (result != ncclSuccess) return result;
  *out = {};
  out->name = all.name;
  out->pciPath = all.pciPath;
  out->guid = all.guid;
  out->ptrSupport = all.ptrSupport;
  out->regIsGlobal = all.regIsGlobal;
  out->speed = all.speed;
  out->port = all.port;
  out->latency = all.latency;
  out->maxComms = all.maxComms;
  out->maxRecvs = all.maxRecvs;
  out->netDeviceType = all.netDeviceType;
  out->netDeviceVersion = all.netDeviceVersion;
  if constexpr (requires { out->vProps; }) {
    out->forceFlush = all.forceFlush;
    // The engine fuses no more devices than the shorter arrays of older versions hold.
    out->vProps.ndevs = all.vProps.ndevs;
    for (int i = 0; i < all.vProps.ndevs; ++i) out->vProps.devs[i] = all.vProps.devs[i];
    out->maxP2pBytes = all.maxP2pBytes;
    out->maxCollBytes = all.maxCollBytes;
  }
  if constexpr (requires { out->maxMultiRequestSize; }) out->maxMultiRequestSize = all.maxMultiRequestSize;
  if constexpr (requires { out->railId; }) {
    out->railId = all.railId;
    out->planeId = all.planeId;
  }
  return ncclSuccess;
}

}  // namespace paralet::plugin::abi
