// SPDX-License-Identifier: Apache-2.0
// The part of CUDA's binary interface that the device serves: numbers and structs, as NVIDIA documents them (CUDA
// Runtime API and CUDA Driver API reference manuals, releases 12 and 13). Own declarations; nothing here is CUDA's
// source text.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paralet::cpu_device::cuda {

enum Error : int {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  no_device = 100,
  invalid_device = 101,
  invalid_resource_handle = 400,
  symbol_not_found = 500,
  not_ready = 600,
  peer_access_unsupported = 217,
  host_memory_already_registered = 712,
  host_memory_not_registered = 713,
  launch_failure = 719,
  not_supported = 801,
};

// The numbers of cudaDeviceAttr and CUdevice_attribute are the same.
enum Attribute : int {
  max_threads_per_block = 1,
  max_shared_memory_per_block = 8,
  warp_size = 10,
  multiprocessor_count = 16,
  unified_addressing = 41,
  compute_capability_major = 75,
  compute_capability_minor = 76,
  max_shared_memory_per_multiprocessor = 81,
  max_shared_memory_per_block_optin = 97,
};

enum MemoryType : int { unregistered = 0, host = 1, device = 2 };

enum CopyKind : int { host_to_host = 0, host_to_device = 1, device_to_host = 2, device_to_device = 3, by_address = 4 };

constexpr unsigned event_disable_timing = 2;
constexpr unsigned stream_non_blocking = 1;

// Handles that name a stream without creating it.
constexpr std::uintptr_t stream_default = 0;
constexpr std::uintptr_t stream_legacy = 1;
constexpr std::uintptr_t stream_per_thread = 2;

struct PointerAttributes {
  MemoryType type;
  int device;
  void* device_pointer;
  void* host_pointer;
};

// cudaDeviceProp begins with these members in all releases from 12 on; how it goes on differs, so no more is written.
struct DevicePropertiesHead {
  char name[256];
  char uuid[16];
  char luid[8];
  unsigned luid_device_node_mask;
  std::size_t total_global_memory;
};
static_assert(offsetof(DevicePropertiesHead, total_global_memory) == 288);

// cudaFuncAttributes up to the carveout; what follows describes thread block clusters.
struct FunctionAttributes {
  std::size_t shared_bytes;
  std::size_t const_bytes;
  std::size_t local_bytes;
  int max_threads_per_block;
  int registers;
  int ptx_version;
  int binary_version;
  int cache_mode_ca;
  int max_dynamic_shared_bytes;
  int preferred_shared_carveout;
};

struct Dim3 {
  unsigned x, y, z;
};

// cudaLaunchConfig_t
struct LaunchConfig {
  Dim3 grid;
  Dim3 block;
  std::size_t shared_bytes;
  void* stream;
  void* attributes;
  unsigned attribute_count;
};

// CUlaunchConfig
struct DriverLaunchConfig {
  Dim3 grid;
  Dim3 block;
  unsigned shared_bytes;
  void* stream;
  void* attributes;
  unsigned attribute_count;
};

// Marks in the `extra` array of a launch: an address, a size, the end.
constexpr std::uintptr_t launch_end = 0;
constexpr std::uintptr_t launch_buffer = 1;
constexpr std::uintptr_t launch_buffer_bytes = 2;

// CUpointer_attribute
enum PointerAttribute : int {
  pointer_memory_type = 2,
  pointer_device_pointer = 3,
  pointer_host_pointer = 4,
  pointer_device_ordinal = 9,
  pointer_is_legacy_ipc_capable = 10,
  pointer_range_start = 11,
  pointer_range_bytes = 12,
};

}  // namespace paralet::cpu_device::cuda
