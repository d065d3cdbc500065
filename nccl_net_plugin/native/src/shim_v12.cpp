// SPDX-License-Identifier: Apache-2.0
#include "abi.hpp"

namespace {

using namespace paralet::plugin;  // NOLINT(google-build-using-namespace): this file is one table

ncclResult_t init(void** context, std::uint64_t /*comm_id*/, ncclNetCommConfig_v12_t* config, ncclDebugLogger_t logger,
                  ncclProfilerCallback_t /*profiler*/) {
  if (context == nullptr) return ncclInvalidArgument;
  return abi::init(context, config, logger);
}

ncclResult_t listen(void* /*context*/, int device, void* handle, void** comm) {
  return abi::listen(device, handle, comm);
}

ncclResult_t connect(void* /*context*/, int device, void* handle, void** comm,
                     ncclNetDeviceHandle_v12_t** /*device_handle*/) {
  return abi::connect(device, handle, comm);
}

ncclResult_t accept(void* listen_comm, void** comm, ncclNetDeviceHandle_v12_t** /*device_handle*/) {
  return abi::accept(listen_comm, comm);
}

ncclResult_t isend(void* comm, void* data, std::size_t size, int tag, void* memory, void* /*profiled*/,
                   void** request) {
  return abi::isend(comm, data, size, tag, memory, request);
}

ncclResult_t irecv(void* comm, int n, void** data, std::size_t* sizes, int* tags, void** memories, void** /*profiled*/,
                   void** request) {
  return abi::irecv<std::size_t>(comm, n, data, sizes, tags, memories, request);
}

}  // namespace

extern "C" {
// NCCL's interface version 12. What is NULL is optional there and does not concern host memory.
__attribute__((visibility("default"))) extern const ncclNet_v12_t ncclNetPlugin_v12 = {
    .name = abi::kName,
    .init = init,
    .devices = abi::devices,
    .getProperties = abi::properties_of<ncclNetProperties_v12_t>,
    .listen = listen,
    .connect = connect,
    .accept = accept,
    .regMr = abi::reg_mr,
    .regMrDmaBuf = abi::reg_mr_dmabuf,
    .deregMr = abi::dereg_mr,
    .isend = isend,
    .irecv = irecv,
    .iflush = abi::iflush,
    .test = abi::test,
    .closeSend = abi::close_send,
    .closeRecv = abi::close_recv,
    .closeListen = abi::close_listen,
    .getDeviceMr = nullptr,
    .irecvConsumed = nullptr,
    .makeVDevice = nullptr,
    .finalize = abi::finalize,
    .setNetAttr = nullptr,
};
}
