// SPDX-License-Identifier: Apache-2.0
#include "abi.hpp"

namespace {

using namespace paralet::plugin;  // NOLINT(google-build-using-namespace): this file is one table

ncclResult_t init(ncclDebugLogger_t logger) { return abi::init(nullptr, nullptr, logger); }

ncclResult_t connect(int device, void* handle, void** comm, ncclNetDeviceHandle_v9_t** /*device_handle*/) {
  return abi::connect(device, handle, comm);
}

ncclResult_t accept(void* listen_comm, void** comm, ncclNetDeviceHandle_v9_t** /*device_handle*/) {
  return abi::accept(listen_comm, comm);
}

ncclResult_t irecv(void* comm, int n, void** data, std::size_t* sizes, int* tags, void** memories, void** request) {
  return abi::irecv<std::size_t>(comm, n, data, sizes, tags, memories, request);
}

}  // namespace

extern "C" {
// NCCL's interface version 9. What is NULL is optional there and does not concern host memory.
__attribute__((visibility("default"))) extern const ncclNet_v9_t ncclNetPlugin_v9 = {
    .name = abi::kName,
    .init = init,
    .devices = abi::devices,
    .getProperties = abi::properties_of<ncclNetProperties_v9_t>,
    .listen = abi::listen,
    .connect = connect,
    .accept = accept,
    .regMr = abi::reg_mr,
    .regMrDmaBuf = abi::reg_mr_dmabuf,
    .deregMr = abi::dereg_mr,
    .isend = abi::isend,
    .irecv = irecv,
    .iflush = abi::iflush,
    .test = abi::test,
    .closeSend = abi::close_send,
    .closeRecv = abi::close_recv,
    .closeListen = abi::close_listen,
    .getDeviceMr = nullptr,
    .irecvConsumed = nullptr,
    .makeVDevice = nullptr,
};
}
