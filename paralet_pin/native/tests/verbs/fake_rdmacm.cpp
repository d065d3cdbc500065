// SPDX-License-Identifier: Apache-2.0
#include "fake_rdmacm.hpp"

int rdma_init_qp_attr(void* id, ibv_qp_attr* attributes, int* mask) {
  *attributes = static_cast<FakeConnection*>(id)->ready;
  *mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_DEST_QPN;
  return 0;
}

int fake_rdma_establish(void* id, ibv_qp* qp) {
  ibv_qp_attr attributes{};
  int mask = 0;
  if (const int error = rdma_init_qp_attr(id, &attributes, &mask); error != 0) return error;
  return ibv_modify_qp(qp, &attributes, mask);
}
