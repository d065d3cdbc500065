// SPDX-License-Identifier: Apache-2.0
// The functions of libibverbs and librdmacm that this library stands in for. Programs that are linked with libibverbs
// reach them because a preloaded library comes first in the order of global symbols; librdmacm and UCX's modules too,
// which call ibv_modify_qp of libibverbs. Programs that open it themselves, as NCCL does, ask dlvsym for them.
#include <dlfcn.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string_view>

#include "planned_ports.hpp"
#include "program_settings.hpp"
#include "verbs/loaded_function.hpp"
#include "verbs/pinned_queue_pairs.hpp"

#define PARALET_PIN_API __attribute__((visibility("default")))

extern "C" {
PARALET_PIN_API int rdma_init_qp_attr(void* id, ibv_qp_attr* attributes, int* mask);
}

namespace paralet::pin {
namespace {

/// A function of another library, found once.
template <typename Function>
class Original {
 public:
  explicit constexpr Original(const char* name) : name_(name) {}

  /// The program itself has found it. The first one counts.
  void learn(void* function) {
    Function* none = nullptr;
    function_.compare_exchange_strong(none, reinterpret_cast<Function*>(function), std::memory_order_relaxed);
  }
  /// nullptr: no loaded library has it.
  Function* get() {
    if (function_.load(std::memory_order_relaxed) == nullptr) learn(loaded_function(name_));
    return function_.load(std::memory_order_relaxed);
  }

 private:
  const char* name_;
  std::atomic<Function*> function_{nullptr};
};

constinit Original<int(ibv_qp*, ibv_qp_attr*, int)> original_modify_qp("ibv_modify_qp");
constinit Original<int(ibv_qp*)> original_destroy_qp("ibv_destroy_qp");
constinit Original<int(void*, ibv_qp_attr*, int*)> original_init_qp_attr("rdma_init_qp_attr");
/// Without `noexcept` its caller could not end in a jump to it.
constinit Original<void*(void*, const char*, const char*) noexcept> original_dlvsym("dlvsym");

/// The flow label of the last rdma_init_qp_attr of this thread, which the kernel has chosen from the ports of the
/// connection (cma_get_roce_udp_flow_label in drivers/infiniband/core/cma.c), not the program.
thread_local std::uint32_t given_label = 0;

/// nullptr where nothing is pinned.
PinnedQueuePairs* queue_pairs() {
  static PinnedQueuePairs* const one = []() -> PinnedQueuePairs* {
    PlannedPorts* const ports = planned_ports();
    if (ports == nullptr) return nullptr;
    VerbsCalls calls{.modify_qp = original_modify_qp.get(), .destroy_qp = original_destroy_qp.get()};
    if (calls.modify_qp == nullptr || calls.destroy_qp == nullptr) return nullptr;
    calls.query_gid = reinterpret_cast<decltype(calls.query_gid)>(loaded_function("_ibv_query_gid_ex"));
    calls.set_port = reinterpret_cast<decltype(calls.set_port)>(loaded_function("mlx5dv_modify_qp_udp_sport"));
    // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): outlives all threads
    return new PinnedQueuePairs(*ports, calls, program_settings());
  }();
  return one;
}

/// What a program gets instead of a function that it looks up.
struct StandIn {
  std::string_view name;  ///< ends with a zero
  std::string_view version;
  void* (*function)();
  void (*learn)(void*);
};

/// Constant, because sanitizers look functions up before anything has been initialized.
constexpr std::array<StandIn, 3> kStandIns{{
    {"ibv_modify_qp", "IBVERBS_1.1", [] { return reinterpret_cast<void*>(&ibv_modify_qp); },
     [](void* function) { original_modify_qp.learn(function); }},
    {"ibv_destroy_qp", "IBVERBS_1.1", [] { return reinterpret_cast<void*>(&ibv_destroy_qp); },
     [](void* function) { original_destroy_qp.learn(function); }},
    {"rdma_init_qp_attr", "RDMACM_1.2", [] { return reinterpret_cast<void*>(&rdma_init_qp_attr); },
     [](void* function) { original_init_qp_attr.learn(function); }},
}};

/// nullptr: the program gets what it asks for.
__attribute__((noinline)) const StandIn* stand_in_for(const void* handle, const char* name,
                                                      const char* version) noexcept {
  if (handle == RTLD_NEXT || name == nullptr || version == nullptr) return nullptr;
  const auto* const found = std::ranges::find_if(
      kStandIns, [&](const StandIn& each) { return each.name == name && each.version == version; });
  return found != kStandIns.end() && planned_ports() != nullptr ? found : nullptr;
}

/// The stand-in of what the program has looked up, if its library has that.
__attribute__((noinline)) void* stand_in_of(const StandIn& stand_in, void* handle, const char* version) noexcept {
  void* const function = original_dlvsym.get()(handle, stand_in.name.data(), version);
  if (function == nullptr) return nullptr;
  if (function != stand_in.function()) stand_in.learn(function);
  return stand_in.function();
}

}  // namespace
}  // namespace paralet::pin

using namespace paralet::pin;  // NOLINT(google-build-using-namespace): the functions below are in no namespace

extern "C" {

PARALET_PIN_API int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  if (PinnedQueuePairs* pairs = queue_pairs()) return pairs->modify(qp, attributes, mask, given_label);
  auto* const original = original_modify_qp.get();
  return original != nullptr ? original(qp, attributes, mask) : ENOSYS;
}

PARALET_PIN_API int ibv_destroy_qp(ibv_qp* qp) {
  if (PinnedQueuePairs* pairs = queue_pairs()) return pairs->destroy(qp);
  auto* const original = original_destroy_qp.get();
  return original != nullptr ? original(qp) : ENOSYS;
}

int rdma_init_qp_attr(void* id, ibv_qp_attr* attributes, int* mask) {
  auto* const original = original_init_qp_attr.get();
  if (original == nullptr) {
    errno = ENOSYS;
    return -1;
  }
  const int result = original(id, attributes, mask);
  if (result == 0 && attributes->qp_state == IBV_QPS_RTR) given_label = attributes->ah_attr.grh.flow_label;
  return result;
}

/// Lookups of anything else end in a jump to the C library's function, not in a call: with RTLD_NEXT it takes the
/// library that it returns to for the one that asks. This file is therefore compiled with -O2.
PARALET_PIN_API void* dlvsym(void* handle, const char* name, const char* version) noexcept {
  auto* const original = original_dlvsym.get();
  const StandIn* const stand_in = stand_in_for(handle, name, version);
  return stand_in == nullptr ? original(handle, name, version) : stand_in_of(*stand_in, handle, version);
}

}  // extern "C"
