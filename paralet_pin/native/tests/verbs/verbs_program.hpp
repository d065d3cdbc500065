// SPDX-License-Identifier: Apache-2.0
// What the programs of these tests do with libibverbs, whichever way they found its functions.
#pragma once

#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "fake_verbs.hpp"

namespace paralet::pin::test {

struct Functions {
  ibv_device** (*get_device_list)(int*);
  ibv_context* (*open_device)(ibv_device*);
  int (*close_device)(ibv_context*);
  ibv_pd* (*alloc_pd)(ibv_context*);
  int (*dealloc_pd)(ibv_pd*);
  ibv_cq* (*create_cq)(ibv_context*, int, void*, ibv_comp_channel*, int);
  int (*destroy_cq)(ibv_cq*);
  ibv_qp* (*create_qp)(ibv_pd*, ibv_qp_init_attr*);
  int (*modify_qp)(ibv_qp*, ibv_qp_attr*, int);
  int (*destroy_qp)(ibv_qp*);
};

/// An open device.
class Opened {
 public:
  explicit Opened(const Functions& functions) : functions_(functions) {
    ::setenv("PARALET_PIN_NETWORKS", "127.0.0.0/8", 1);  // the fake NIC is on loopback
    int count = 0;
    context_ = functions_.open_device(*functions_.get_device_list(&count));
    pd_ = functions_.alloc_pd(context_);
    cq_ = functions_.create_cq(context_, 16, nullptr, nullptr, 0);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  ~Opened() {
    functions_.destroy_cq(cq_);
    functions_.dealloc_pd(pd_);
    functions_.close_device(context_);
  }

  [[nodiscard]] ibv_qp* create() const {
    ibv_qp_init_attr wanted{};
    wanted.qp_type = IBV_QPT_RC;
    wanted.send_cq = wanted.recv_cq = cq_;
    ibv_qp* qp = functions_.create_qp(pd_, &wanted);
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    functions_.modify_qp(qp, &attributes, IBV_QP_STATE);
    return qp;
  }
  /// Up to RTS.
  [[nodiscard]] int connect(ibv_qp* qp, std::uint32_t peer = fake_verbs::kAddress) const {
    ibv_qp_attr attributes = ready(peer);
    const int error = functions_.modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_AV | IBV_QP_DEST_QPN);
    if (error != 0) return error;
    attributes = {};
    attributes.qp_state = IBV_QPS_RTS;
    return functions_.modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN);
  }
  [[nodiscard]] int destroy(ibv_qp* qp) const { return functions_.destroy_qp(qp); }

  static ibv_qp_attr ready(std::uint32_t peer = fake_verbs::kAddress) {
    ibv_qp_attr out{};
    out.qp_state = IBV_QPS_RTR;
    out.ah_attr.is_global = 1;
    out.ah_attr.port_num = 1;
    out.ah_attr.grh.sgid_index = 3;
    out.ah_attr.grh.dgid.raw[10] = out.ah_attr.grh.dgid.raw[11] = 0xFF;
    const std::uint32_t address = htonl(peer);
    std::memcpy(&out.ah_attr.grh.dgid.raw[12], &address, sizeof address);
    return out;
  }

 private:
  Functions functions_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
};

}  // namespace paralet::pin::test
