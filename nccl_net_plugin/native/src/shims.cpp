// SPDX-License-Identifier: Apache-2.0
// The tables of calls that NCCL looks up, versions 8 to 12. Calls have the newest version's form in abi.hpp; the
// overloads below adapt the older forms, and each table takes the overloads that have its version's signatures.
#include "abi.hpp"

namespace {

using namespace paralet::plugin;  // NOLINT(google-build-using-namespace): this file is the plugin's face

// Versions 8 and 9, version 10, and versions 11 and 12.
ncclResult_t init(ncclDebugLogger_t logger) { return abi::init(nullptr, nullptr, logger, nullptr); }
ncclResult_t init(ncclDebugLogger_t logger, ncclProfilerCallback_t profiler) {
  return abi::init(nullptr, nullptr, logger, profiler);
}
ncclResult_t init(void** context, std::uint64_t /*comm_id*/, ncclNetCommConfig_v12_t* config, ncclDebugLogger_t logger,
                  ncclProfilerCallback_t profiler) {
  if (context == nullptr) return ncclInvalidArgument;
  return abi::init(context, config, logger, profiler);
}

// Versions 8 to 10, and versions 11 and 12.
ncclResult_t listen(int device, void* handle, void** comm) { return abi::listen(nullptr, device, handle, comm); }
ncclResult_t listen(void* context, int device, void* handle, void** comm) {
  return abi::listen(context, device, handle, comm);
}

// Versions 8 and 9, version 10, and versions 11 and 12. Device handles are for networks that a GPU drives.
ncclResult_t connect(int device, void* handle, void** comm, ncclNetDeviceHandle_v12_t** /*device_handle*/) {
  return abi::connect(nullptr, device, nullptr, handle, comm);
}
ncclResult_t connect(int device, ncclNetCommConfig_v10_t* config, void* handle, void** comm,
                     ncclNetDeviceHandle_v12_t** /*device_handle*/) {
  return abi::connect(nullptr, device, config, handle, comm);
}
ncclResult_t connect(void* context, int device, void* handle, void** comm,
                     ncclNetDeviceHandle_v12_t** /*device_handle*/) {
  return abi::connect(context, device, nullptr, handle, comm);
}

// All versions.
ncclResult_t accept(void* listen_comm, void** comm, ncclNetDeviceHandle_v12_t** /*device_handle*/) {
  return abi::accept(listen_comm, comm);
}

// Version 8, version 9, and versions 10 to 12.
ncclResult_t isend(void* comm, void* data, int size, int tag, void* memory, void** request) {
  if (size < 0) return ncclInvalidArgument;
  return abi::isend(comm, data, static_cast<std::size_t>(size), tag, memory, nullptr, request);
}
ncclResult_t isend(void* comm, void* data, std::size_t size, int tag, void* memory, void** request) {
  return abi::isend(comm, data, size, tag, memory, nullptr, request);
}
ncclResult_t isend(void* comm, void* data, std::size_t size, int tag, void* memory, void* profiled, void** request) {
  return abi::isend(comm, data, size, tag, memory, profiled, request);
}

// Versions 8 and 9, and versions 10 to 12.
template <typename Size>
ncclResult_t irecv(void* comm, int n, void** data, Size* sizes, int* tags, void** memories, void** request) {
  return abi::irecv<Size>(comm, n, data, sizes, tags, memories, nullptr, request);
}
ncclResult_t irecv(void* comm, int n, void** data, std::size_t* sizes, int* tags, void** memories, void** profiled,
                   void** request) {
  return abi::irecv<std::size_t>(comm, n, data, sizes, tags, memories, profiled, request);
}

// Versions 11 and 12.
ncclResult_t set_net_attr(void* context, ncclNetAttr_v12_t* attributes) {
  return abi::set_net_attr(context, attributes);
}

/// A version's table. Calls that stay NULL are optional: they concern networks that a GPU drives.
template <typename Table>
constexpr Table table() {
  Table out{};
  out.name = abi::kName;
  out.init = init;
  out.devices = abi::devices;
  out.getProperties = abi::properties_of;
  out.listen = listen;
  out.connect = connect;
  out.accept = accept;
  out.regMr = abi::reg_mr;
  out.regMrDmaBuf = abi::reg_mr_dmabuf;
  out.deregMr = abi::dereg_mr;
  out.isend = isend;
  out.irecv = irecv;
  out.iflush = abi::iflush;
  out.test = abi::test;
  out.closeSend = abi::close_send;
  out.closeRecv = abi::close_recv;
  out.closeListen = abi::close_listen;
  if constexpr (requires { out.makeVDevice; }) out.makeVDevice = abi::make_vdevice;
  if constexpr (requires { out.finalize; }) {
    out.finalize = abi::finalize;
    out.setNetAttr = set_net_attr;
  }
  return out;
}

}  // namespace

// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): type and symbol differ by the version's number
#define PARALET_EXPORT(version)                                                                                     \
  extern "C" __attribute__((visibility("default"))) constinit const ncclNet_##version##_t ncclNetPlugin_##version = \
      table<ncclNet_##version##_t>()

PARALET_EXPORT(v8);
PARALET_EXPORT(v9);
PARALET_EXPORT(v10);
PARALET_EXPORT(v11);
PARALET_EXPORT(v12);
