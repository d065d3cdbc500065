// SPDX-License-Identifier: Apache-2.0
#include "abi.hpp"

namespace {

using namespace paralet::plugin;  // NOLINT(google-build-using-namespace): this file is one table

ncclResult_t init(ncclDebugLogger_t logger) { return abi::init(nullptr, nullptr, logger); }

ncclResult_t connect(int device, void* handle, void** comm, ncclNetDeviceHandle_v8_t** /*device_handle*/) {
  return abi::connect(device, handle, comm);
}

ncclResult_t accept(void* listen_comm, void** comm, ncclNetDeviceHandle_v8_t** /*device_handle*/) {
  return abi::accept(listen_comm, comm);
}

ncclResult_t isend(void* comm, void* data, int size, int tag, void* memory, void** request) {
  if (size < 0) return ncclInvalidArgument;
  return abi::isend(comm, data, static_cast<std::size_t>(size), tag, memory, request);
}

ncclResult_t irecv(void* comm, int n, void** data, int* sizes, int* tags, void** memories, void** request) {
  return abi::irecv<int>(comm, n, data, sizes, tags, memories, request);
}

}  // namespace

extern "C" {
// NCCL's interface version 8. What is NULL is optional there and does not concern host memory.
__attribute__((visibility("default"))) extern const ncclNet_v8_t ncclNetPlugin_v8 = {
    .name = abi::kName,
    .init = init,
    .devices = abi::devices,
    .getProperties = abi::properties_of<ncclNetProperties_v8_t>,
    .listen = abi::listen,
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
};
}
