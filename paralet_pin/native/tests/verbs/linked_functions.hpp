// SPDX-License-Identifier: Apache-2.0
// The functions of libibverbs as a program has them that is linked with it. Apart from verbs_program.hpp, since not all
// tests are.
#pragma once

#include "verbs_program.hpp"

namespace paralet::pin::test {

inline constexpr Functions kLinked{.get_device_list = &ibv_get_device_list,
                                   .open_device = &ibv_open_device,
                                   .close_device = &ibv_close_device,
                                   .alloc_pd = &ibv_alloc_pd,
                                   .dealloc_pd = &ibv_dealloc_pd,
                                   .create_cq = &ibv_create_cq,
                                   .destroy_cq = &ibv_destroy_cq,
                                   .create_qp = &ibv_create_qp,
                                   .modify_qp = &ibv_modify_qp,
                                   .destroy_qp = &ibv_destroy_qp};

}  // namespace paralet::pin::test
