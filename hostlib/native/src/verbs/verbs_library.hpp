// SPDX-License-Identifier: Apache-2.0
// libibverbs, loaded at run time, so that the engine also loads where it is absent. The inline functions of its header
// call through the context and do not need this table.
#pragma once

#include <infiniband/verbs.h>

#include <memory>

namespace paralet {

struct VerbsLibrary {
  int (*fork_init)() = nullptr;
  ibv_device** (*get_device_list)(int*) = nullptr;
  void (*free_device_list)(ibv_device**) = nullptr;
  const char* (*get_device_name)(ibv_device*) = nullptr;
  ibv_context* (*open_device)(ibv_device*) = nullptr;
  int (*close_device)(ibv_context*) = nullptr;
  int (*query_device)(ibv_context*, ibv_device_attr*) = nullptr;
  int (*query_port)(ibv_context*, std::uint8_t, ibv_port_attr*) = nullptr;  ///< fills the attributes up to link_layer
  ssize_t (*query_gid_table)(ibv_context*, ibv_gid_entry*, std::size_t, std::uint32_t, std::size_t) = nullptr;
  ibv_pd* (*alloc_pd)(ibv_context*) = nullptr;
  int (*dealloc_pd)(ibv_pd*) = nullptr;
  ibv_mr* (*reg_mr_iova)(ibv_pd*, void*, std::size_t, std::uint64_t, int) = nullptr;
  int (*dereg_mr)(ibv_mr*) = nullptr;
  ibv_comp_channel* (*create_comp_channel)(ibv_context*) = nullptr;
  int (*destroy_comp_channel)(ibv_comp_channel*) = nullptr;
  ibv_cq* (*create_cq)(ibv_context*, int, void*, ibv_comp_channel*, int) = nullptr;
  int (*destroy_cq)(ibv_cq*) = nullptr;
  int (*get_cq_event)(ibv_comp_channel*, ibv_cq**, void**) = nullptr;
  void (*ack_cq_events)(ibv_cq*, unsigned) = nullptr;
  ibv_srq* (*create_srq)(ibv_pd*, ibv_srq_init_attr*) = nullptr;
  int (*destroy_srq)(ibv_srq*) = nullptr;
  ibv_qp* (*create_qp)(ibv_pd*, ibv_qp_init_attr*) = nullptr;
  int (*modify_qp)(ibv_qp*, ibv_qp_attr*, int) = nullptr;
  int (*destroy_qp)(ibv_qp*) = nullptr;
  int (*get_async_event)(ibv_context*, ibv_async_event*) = nullptr;
  void (*ack_async_event)(ibv_async_event*) = nullptr;

  // Optional: absent in older libraries and for other vendors. nullptr then.
  int (*query_ece)(ibv_qp*, ibv_ece*) = nullptr;
  int (*set_ece)(ibv_qp*, ibv_ece*) = nullptr;
  ibv_mr* (*reg_mr_iova2)(ibv_pd*, void*, std::size_t, std::uint64_t,
                          unsigned) = nullptr;  ///< takes optional access flags
  ibv_mr* (*reg_dmabuf_mr)(ibv_pd*, std::uint64_t, std::size_t, std::uint64_t, int, int) = nullptr;
  int (*mlx5_modify_qp_udp_sport)(ibv_qp*, std::uint16_t) = nullptr;  ///< from libmlx5

  /// Loads the library once. Throws DeviceError, which names the package, when it is absent or too old.
  static const VerbsLibrary& load();
};

/// Owns a verbs object and destroys it through the library.
template <auto Destroy>
struct VerbsDeleter {
  template <typename Object>
  void operator()(Object* object) const {
    (VerbsLibrary::load().*Destroy)(object);
  }
};
using ContextHandle = std::unique_ptr<ibv_context, VerbsDeleter<&VerbsLibrary::close_device>>;
using PdHandle = std::unique_ptr<ibv_pd, VerbsDeleter<&VerbsLibrary::dealloc_pd>>;
using MrHandle = std::unique_ptr<ibv_mr, VerbsDeleter<&VerbsLibrary::dereg_mr>>;
using ChannelHandle = std::unique_ptr<ibv_comp_channel, VerbsDeleter<&VerbsLibrary::destroy_comp_channel>>;
using CqHandle = std::unique_ptr<ibv_cq, VerbsDeleter<&VerbsLibrary::destroy_cq>>;
using SrqHandle = std::unique_ptr<ibv_srq, VerbsDeleter<&VerbsLibrary::destroy_srq>>;
using QpHandle = std::unique_ptr<ibv_qp, VerbsDeleter<&VerbsLibrary::destroy_qp>>;

}  // namespace paralet
