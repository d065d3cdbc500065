// SPDX-License-Identifier: Apache-2.0
#include <infiniband/verbs.h>

#include "fake_verbs.hpp"

extern "C" FAKE_VERBS_API int mlx5dv_modify_qp_udp_sport(ibv_qp* qp, std::uint16_t port) {
  return fake_verbs::modify_udp_sport(qp->qp_num, port);
}
