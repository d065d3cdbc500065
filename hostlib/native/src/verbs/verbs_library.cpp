// SPDX-License-Identifier: Apache-2.0
#include "verbs/verbs_library.hpp"

#include <dlfcn.h>

#include <string>

#include "base/errors.hpp"

namespace paralet {
namespace {

constexpr const char* kRemedy = "install it (Debian: apt-get install libibverbs1 ibverbs-providers)";

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
}

template <typename Function>
void require(void* library, const char* name, Function& function) {
  find(library, name, function);
  if (function == nullptr) {
    throw DeviceError(std::string("libibverbs is too old, it has no ") + name + ": " + kRemedy);
  }
}

VerbsLibrary open() {
  void* library = ::dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw DeviceError(std::string("the verbs back end needs libibverbs.so.1: ") + kRemedy);
  VerbsLibrary out;
  require(library, "ibv_fork_init", out.fork_init);
  require(library, "ibv_get_device_list", out.get_device_list);
  require(library, "ibv_free_device_list", out.free_device_list);
  require(library, "ibv_get_device_name", out.get_device_name);
  require(library, "ibv_open_device", out.open_device);
  require(library, "ibv_close_device", out.close_device);
  require(library, "ibv_query_device", out.query_device);
  require(library, "ibv_query_port", out.query_port);
  require(library, "_ibv_query_gid_table", out.query_gid_table);
  require(library, "ibv_alloc_pd", out.alloc_pd);
  require(library, "ibv_dealloc_pd", out.dealloc_pd);
  require(library, "ibv_reg_mr_iova", out.reg_mr_iova);
  require(library, "ibv_dereg_mr", out.dereg_mr);
  require(library, "ibv_create_comp_channel", out.create_comp_channel);
  require(library, "ibv_destroy_comp_channel", out.destroy_comp_channel);
  require(library, "ibv_create_cq", out.create_cq);
  require(library, "ibv_destroy_cq", out.destroy_cq);
  require(library, "ibv_get_cq_event", out.get_cq_event);
  require(library, "ibv_ack_cq_events", out.ack_cq_events);
  require(library, "ibv_create_srq", out.create_srq);
  require(library, "ibv_destroy_srq", out.destroy_srq);
  require(library, "ibv_create_qp", out.create_qp);
  require(library, "ibv_modify_qp", out.modify_qp);
  require(library, "ibv_destroy_qp", out.destroy_qp);
  require(library, "ibv_get_async_event", out.get_async_event);
  require(library, "ibv_ack_async_event", out.ack_async_event);
  find(library, "ibv_query_ece", out.query_ece);
  find(library, "ibv_set_ece", out.set_ece);
  find(library, "ibv_reg_mr_iova2", out.reg_mr_iova2);
  find(library, "ibv_reg_dmabuf_mr", out.reg_dmabuf_mr);
  if (void* mlx5 = ::dlopen("libmlx5.so.1", RTLD_NOW | RTLD_LOCAL); mlx5 != nullptr) {
    find(mlx5, "mlx5dv_modify_qp_udp_sport", out.mlx5_modify_qp_udp_sport);
  }
  return out;
}

}  // namespace

const VerbsLibrary& VerbsLibrary::load() {
  static const VerbsLibrary library = [] {
    VerbsLibrary out = open();  // never unloaded, because drivers do not support that
    // Before any other call. A process that forks keeps its registered memory; on kernels that copy it for the child
    // (Linux 5.12) this changes nothing. An error means that another user of libibverbs came first.
    out.fork_init();
    return out;
  }();
  return library;
}

}  // namespace paralet
