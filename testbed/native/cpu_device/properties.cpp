// SPDX-License-Identifier: Apache-2.0
#include "properties.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "cuda_abi.hpp"

namespace paralet::cpu_device {

namespace {

struct ErrorText {
  cuda::Error error;
  const char* name;
  const char* text;
};

constexpr ErrorText errors[] = {
    {cuda::success, "cudaSuccess", "no error"},
    {cuda::invalid_value, "cudaErrorInvalidValue", "invalid argument"},
    {cuda::out_of_memory, "cudaErrorMemoryAllocation", "out of memory"},
    {cuda::no_device, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cuda::invalid_device, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cuda::peer_access_unsupported, "cudaErrorPeerAccessUnsupported", "peer access is not supported"},
    {cuda::invalid_resource_handle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cuda::symbol_not_found, "cudaErrorSymbolNotFound", "named symbol not found"},
    {cuda::not_ready, "cudaErrorNotReady", "device not ready"},
    {cuda::host_memory_already_registered, "cudaErrorHostMemoryAlreadyRegistered", "memory is already registered"},
    {cuda::host_memory_not_registered, "cudaErrorHostMemoryNotRegistered", "memory has not been registered"},
    {cuda::launch_failure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cuda::not_supported, "cudaErrorNotSupported", "operation not supported by the paralet CPU device"},
};

const ErrorText* find(int error) {
  for (const auto& each : errors) {
    if (each.error == error) return &each;
  }
  return nullptr;
}

}  // namespace

int attribute_of(int attribute) {
  // An A100: NCCL then asks for neither thread block clusters nor multicast nor the TMA.
  switch (attribute) {
    case cuda::compute_capability_major:
      return 8;
    case cuda::compute_capability_minor:
      return 0;
    case cuda::max_threads_per_block:
      return 1024;
    case cuda::max_shared_memory_per_block:
      return 48 * 1024;
    case cuda::max_shared_memory_per_block_optin:
      return 163 * 1024;
    case cuda::max_shared_memory_per_multiprocessor:
      return 164 * 1024;
    case cuda::warp_size:
      return 32;
    case cuda::multiprocessor_count:
      return 108;
    case cuda::unified_addressing:
      return 1;
    default:
      return 0;
  }
}

std::string bus_id() {
  const char* given = std::getenv("PARALET_CPU_DEVICE_BUS_ID");
  return given != nullptr && *given != '\0' ? given : "ffff:00:00.0";
}

void fill_uuid(char* uuid) {
  constexpr std::size_t uuid_bytes = 16;
  std::string bus = bus_id();
  bus.resize(uuid_bytes);
  std::copy(bus.begin(), bus.end(), uuid);
}

std::size_t total_memory() {
  return static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(::sysconf(_SC_PAGE_SIZE));
}

const char* error_name(int error) {
  const ErrorText* found = find(error);
  return found != nullptr ? found->name : "unrecognized error code";
}

const char* error_text(int error) {
  const ErrorText* found = find(error);
  return found != nullptr ? found->text : "unrecognized error code";
}

}  // namespace paralet::cpu_device
