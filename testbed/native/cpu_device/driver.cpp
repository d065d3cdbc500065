// SPDX-License-Identifier: Apache-2.0
// The functions of the CUDA driver that NCCL asks for by name (cudaGetDriverEntryPoint). Semantics are those of the
// CUDA Driver API reference. The virtual memory functions, multicast and stream memory operations are absent, and NCCL
// does without them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "cuda_abi.hpp"
#include "device.hpp"
#include "library.hpp"
#include "properties.hpp"

namespace paralet::cpu_device {

namespace {

// Numbers of errors are those of the runtime, as far as the device has them.
constexpr int invalid_value = cuda::invalid_value;

int get_error_string(int error, const char** text) {
  *text = error_text(error);
  return cuda::success;
}

int get_error_name(int error, const char** name) {
  *name = error_name(error);
  return cuda::success;
}

int device_get(int* handle, int number) {
  if (number != 0) return cuda::invalid_device;
  *handle = 0;
  return cuda::success;
}

int device_get_attribute(int* value, int attribute, int /*device*/) {
  *value = attribute_of(attribute);
  return cuda::success;
}

int device_get_uuid(char* uuid, int /*device*/) {
  fill_uuid(uuid);
  return cuda::success;
}

// There is one context, which is always current.
char only_context = 0;

int context_get_current(void** context) {
  *context = &only_context;
  return cuda::success;
}

int context_set_current(void* /*context*/) { return cuda::success; }

int context_get_device(int* handle) {
  *handle = 0;
  return cuda::success;
}

// CUdeviceptr is an integer as wide as a pointer, so a pointer takes its place.
int pointer_get_attribute(void* value, int attribute, std::byte* pointer) {
  const auto allocation = Device::instance().memory().find(pointer);
  if (!allocation) return invalid_value;
  const bool on_device = allocation->kind == MemoryKind::device;
  switch (attribute) {
    case cuda::pointer_memory_type: {
      const int type = on_device ? 2 : 1;  // CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST
      std::memcpy(value, &type, sizeof(type));
      return cuda::success;
    }
    case cuda::pointer_device_ordinal: {
      const int ordinal = 0;
      std::memcpy(value, &ordinal, sizeof(ordinal));
      return cuda::success;
    }
    case cuda::pointer_is_legacy_ipc_capable: {
      const bool capable = false;
      std::memcpy(value, &capable, sizeof(capable));
      return cuda::success;
    }
    case cuda::pointer_host_pointer:
      if (on_device) return invalid_value;
      [[fallthrough]];
    case cuda::pointer_device_pointer:
      std::memcpy(value, &pointer, sizeof(pointer));
      return cuda::success;
    case cuda::pointer_range_start:
      std::memcpy(value, &allocation->base, sizeof(allocation->base));
      return cuda::success;
    case cuda::pointer_range_bytes:
      std::memcpy(value, &allocation->bytes, sizeof(allocation->bytes));
      return cuda::success;
    default:
      return cuda::not_supported;
  }
}

int get_address_range(std::byte** base, std::size_t* bytes, const std::byte* pointer) {
  const auto allocation = Device::instance().memory().find(pointer);
  if (!allocation) return invalid_value;
  if (base != nullptr) *base = allocation->base;
  if (bytes != nullptr) *bytes = allocation->bytes;
  return cuda::success;
}

int launch_kernel_ex(const cuda::DriverLaunchConfig* config, void* function, void** parameters, void** extra) {
  if (Device::instance().failure() != cuda::success) return Device::instance().failure();
  return launch(
      {.function = function, .grid = config->grid, .parameters = parameters, .extra = extra, .stream = config->stream});
}

int launch_kernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                  unsigned block_z, unsigned shared_bytes, void* stream, void** parameters, void** extra) {
  const cuda::DriverLaunchConfig config{.grid = {grid_x, grid_y, grid_z},
                                        .block = {block_x, block_y, block_z},
                                        .shared_bytes = shared_bytes,
                                        .stream = stream,
                                        .attributes = nullptr,
                                        .attribute_count = 0};
  return launch_kernel_ex(&config, function, parameters, extra);
}

template <typename F>
void* address(F* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

void* driver_function(std::string_view name) {
  static const std::pair<std::string_view, void*> functions[] = {
      {"cuGetErrorString", address(get_error_string)},
      {"cuGetErrorName", address(get_error_name)},
      {"cuDeviceGet", address(device_get)},
      {"cuDeviceGetAttribute", address(device_get_attribute)},
      {"cuDeviceGetUuid", address(device_get_uuid)},
      {"cuCtxGetCurrent", address(context_get_current)},
      {"cuCtxSetCurrent", address(context_set_current)},
      {"cuCtxGetDevice", address(context_get_device)},
      {"cuPointerGetAttribute", address(pointer_get_attribute)},
      {"cuMemGetAddressRange", address(get_address_range)},
      {"cuLaunchKernelEx", address(launch_kernel_ex)},
      {"cuLaunchKernel", address(launch_kernel)},
  };
  const auto* found =
      std::find_if(std::begin(functions), std::end(functions), [&](const auto& each) { return each.first == name; });
  return found == std::end(functions) ? nullptr : found->second;
}

}  // namespace paralet::cpu_device
