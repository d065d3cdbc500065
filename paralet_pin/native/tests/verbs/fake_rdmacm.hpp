// SPDX-License-Identifier: Apache-2.0
// A fake librdmacm: it connects queue pairs as the real one does, which calls libibverbs.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#define FAKE_RDMACM_API __attribute__((visibility("default")))

/// What stands for a connection: the kernel's attributes of it.
struct FakeConnection {
  ibv_qp_attr ready{};  ///< at RTR
};

extern "C" {
FAKE_RDMACM_API int rdma_init_qp_attr(void* id, ibv_qp_attr* attributes, int* mask);
/// Connects the queue pair: INIT -> RTR by libibverbs, with what rdma_init_qp_attr says.
FAKE_RDMACM_API int fake_rdma_establish(void* id, ibv_qp* qp);
}
