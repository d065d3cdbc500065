// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA runtime that NCCL and programs over it use, under its real names. Semantics are those of the
// CUDA Runtime API reference; where the device serves less, a call returns cudaErrorNotSupported and has no effect.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda_abi.hpp"
#include "device.hpp"
#include "library.hpp"
#include "log.hpp"
#include "properties.hpp"

#define PARALET_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace paralet::cpu_device;

thread_local cuda::Error last_error = cuda::success;

// The result of a call, kept for cudaGetLastError where it is an error.
cuda::Error noted(cuda::Error error) {
  if (error != cuda::success) last_error = error;
  return error;
}

Device& device() { return Device::instance(); }

// For calls that also report what failed earlier.
cuda::Error failure() { return noted(device().failure()); }

cuda::Error not_supported(const char* call) {
  debug(std::string(call) + " is not supported");
  return noted(cuda::not_supported);
}

// Copies of up to so many bytes out of pageable memory are taken at once, so that the call need not wait.
constexpr std::size_t staged_bytes = 64 * 1024;

bool pageable(const void* address) { return !device().memory().find(address); }

cuda::Error allocate(void** address, std::size_t bytes, MemoryKind kind) {
  if (address == nullptr) return noted(cuda::invalid_value);
  *address = nullptr;
  if (bytes == 0) return failure();
  *address = device().memory().allocate(bytes, kind);
  return *address == nullptr ? noted(cuda::out_of_memory) : failure();
}

// Waits for the device, as cudaFree does: kernels may still use the memory.
cuda::Error release(void* address, MemoryKind kind) {
  if (address == nullptr) return failure();
  device().synchronize();
  const auto allocation = device().memory().remove(address, kind);
  if (!allocation) return noted(cuda::invalid_value);
  Memory::release(*allocation);
  return failure();
}

cuda::Error create_stream(StreamHandle* handle, unsigned flags, int priority) {
  if (handle == nullptr || flags > cuda::stream_non_blocking) return noted(cuda::invalid_value);
  *handle = device().create_stream(flags != cuda::stream_non_blocking, priority);
  return failure();
}

cuda::Error queue(StreamHandle handle, std::function<void()> work) {
  const auto stream = device().stream(handle);
  if (stream == nullptr) return noted(cuda::invalid_resource_handle);
  device().submit(stream, std::move(work));
  return failure();
}

cuda::Error create_event(EventHandle* handle, unsigned flags) {
  if (handle == nullptr) return noted(cuda::invalid_value);
  *handle = device().create_event((flags & cuda::event_disable_timing) == 0);
  return failure();
}

// The capture of CUDA graphs is not served, so no stream is ever capturing.
constexpr int capture_none = 0;

cuda::Error capture_state(StreamHandle handle, int* state) {
  if (device().stream(handle) == nullptr) return noted(cuda::invalid_resource_handle);
  if (state != nullptr) *state = capture_none;
  return failure();
}

}  // namespace

// Errors

PARALET_EXPORT int cudaGetLastError() {
  const auto sticky = device().failure();
  const auto error = std::exchange(last_error, cuda::success);
  return sticky != cuda::success ? sticky : error;
}

PARALET_EXPORT int cudaPeekAtLastError() {
  const auto sticky = device().failure();
  return sticky != cuda::success ? sticky : last_error;
}

PARALET_EXPORT const char* cudaGetErrorName(int error) { return error_name(error); }

PARALET_EXPORT const char* cudaGetErrorString(int error) { return error_text(error); }

// The device

PARALET_EXPORT int cudaDriverGetVersion(int* version) {
  if (version == nullptr) return noted(cuda::invalid_value);
  *version = driver_version;
  return cuda::success;
}

PARALET_EXPORT int cudaRuntimeGetVersion(int* version) {
  if (version == nullptr) return noted(cuda::invalid_value);
  *version = driver_version;
  return cuda::success;
}

PARALET_EXPORT int cudaGetDeviceCount(int* count) {
  if (count == nullptr) return noted(cuda::invalid_value);
  *count = 1;
  return cuda::success;
}

PARALET_EXPORT int cudaGetDevice(int* number) {
  if (number == nullptr) return noted(cuda::invalid_value);
  *number = 0;
  return cuda::success;
}

PARALET_EXPORT int cudaSetDevice(int number) { return number == 0 ? failure() : noted(cuda::invalid_device); }

PARALET_EXPORT int cudaDeviceGetAttribute(int* value, int attribute, int number) {
  if (value == nullptr) return noted(cuda::invalid_value);
  if (number != 0) return noted(cuda::invalid_device);
  *value = attribute_of(attribute);
  return cuda::success;
}

PARALET_EXPORT int cudaGetDeviceProperties(void* properties, int number) {
  if (properties == nullptr) return noted(cuda::invalid_value);
  if (number != 0) return noted(cuda::invalid_device);
  cuda::DevicePropertiesHead head{};
  std::snprintf(head.name, sizeof(head.name), "%s", device_name);
  fill_uuid(head.uuid);
  head.total_global_memory = total_memory();
  std::memcpy(properties, &head, sizeof(head));
  return cuda::success;
}

PARALET_EXPORT int cudaGetDeviceProperties_v2(void* properties, int number) {
  return cudaGetDeviceProperties(properties, number);
}

PARALET_EXPORT int cudaDeviceGetPCIBusId(char* text, int length, int number) {
  if (text == nullptr || length <= 0) return noted(cuda::invalid_value);
  if (number != 0) return noted(cuda::invalid_device);
  const std::string bus = bus_id();
  if (bus.size() >= static_cast<std::size_t>(length)) return noted(cuda::invalid_value);
  std::memcpy(text, bus.c_str(), bus.size() + 1);
  return cuda::success;
}

PARALET_EXPORT int cudaDeviceCanAccessPeer(int* can, int number, int peer) {
  if (can == nullptr) return noted(cuda::invalid_value);
  if (number != 0 || peer != 0) return noted(cuda::invalid_device);
  *can = 0;
  return cuda::success;
}

PARALET_EXPORT int cudaDeviceEnablePeerAccess(int, unsigned) { return noted(cuda::peer_access_unsupported); }

PARALET_EXPORT int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = 0;
  return cuda::success;
}

// The stack of a kernel is that of a host thread.
PARALET_EXPORT int cudaDeviceSetLimit(int, std::size_t) { return failure(); }

PARALET_EXPORT int cudaDeviceSynchronize() {
  device().synchronize();
  return failure();
}

PARALET_EXPORT int cudaDeviceReset() {
  device().reset();
  last_error = cuda::success;
  return cuda::success;
}

// Memory

PARALET_EXPORT int cudaMalloc(void** address, std::size_t bytes) {
  return allocate(address, bytes, MemoryKind::device);
}

PARALET_EXPORT int cudaFree(void* address) { return release(address, MemoryKind::device); }

PARALET_EXPORT int cudaHostAlloc(void** address, std::size_t bytes, unsigned) {
  return allocate(address, bytes, MemoryKind::pinned);
}

PARALET_EXPORT int cudaMallocHost(void** address, std::size_t bytes) {
  return allocate(address, bytes, MemoryKind::pinned);
}

PARALET_EXPORT int cudaFreeHost(void* address) { return release(address, MemoryKind::pinned); }

PARALET_EXPORT int cudaHostRegister(void* address, std::size_t bytes, unsigned) {
  if (address == nullptr || bytes == 0) return noted(cuda::invalid_value);
  if (!device().memory().add_registered(address, bytes)) return noted(cuda::host_memory_already_registered);
  return failure();
}

PARALET_EXPORT int cudaHostUnregister(void* address) {
  if (!device().memory().remove(address, MemoryKind::registered)) return noted(cuda::host_memory_not_registered);
  return failure();
}

PARALET_EXPORT int cudaHostGetDevicePointer(void** on_device, void* address, unsigned) {
  if (on_device == nullptr || pageable(address)) return noted(cuda::invalid_value);
  *on_device = address;
  return failure();
}

PARALET_EXPORT int cudaPointerGetAttributes(cuda::PointerAttributes* attributes, const void* address) {
  if (attributes == nullptr) return noted(cuda::invalid_value);
  const auto allocation = device().memory().find(address);
  auto* const pointer = const_cast<void*>(address);
  if (!allocation) {
    *attributes = {.type = cuda::unregistered, .device = -2, .device_pointer = nullptr, .host_pointer = pointer};
  } else if (allocation->kind == MemoryKind::device) {
    *attributes = {.type = cuda::device, .device = 0, .device_pointer = pointer, .host_pointer = nullptr};
  } else {
    *attributes = {.type = cuda::host, .device = 0, .device_pointer = pointer, .host_pointer = pointer};
  }
  return failure();
}

PARALET_EXPORT int cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, int kind, StreamHandle handle) {
  if (kind < cuda::host_to_host || kind > cuda::by_address) return noted(cuda::invalid_value);
  if (bytes == 0) return failure();
  if (to == nullptr || from == nullptr) return noted(cuda::invalid_value);
  const auto stream = device().stream(handle);
  if (stream == nullptr) return noted(cuda::invalid_resource_handle);
  // Pageable memory belongs to the caller again when the call returns.
  if (pageable(from) && bytes <= staged_bytes && !pageable(to)) {
    const auto* first = static_cast<const std::byte*>(from);
    device().submit(stream, [to, staged = std::vector<std::byte>(first, first + bytes)] {
      std::memcpy(to, staged.data(), staged.size());
    });
    return failure();
  }
  const auto end = device().submit(stream, [=] { std::memcpy(to, from, bytes); });
  if (pageable(from) || pageable(to)) end->wait();
  return failure();
}

PARALET_EXPORT int cudaMemcpy(void* to, const void* from, std::size_t bytes, int kind) {
  if (kind < cuda::host_to_host || kind > cuda::by_address) return noted(cuda::invalid_value);
  if (bytes == 0) return failure();
  if (to == nullptr || from == nullptr) return noted(cuda::invalid_value);
  device().mark(device().stream(nullptr))->wait();
  std::memcpy(to, from, bytes);
  return failure();
}

PARALET_EXPORT int cudaMemsetAsync(void* address, int value, std::size_t bytes, StreamHandle handle) {
  if (bytes == 0) return failure();
  if (address == nullptr) return noted(cuda::invalid_value);
  return queue(handle, [=] { std::memset(address, value, bytes); });
}

PARALET_EXPORT int cudaMemset(void* address, int value, std::size_t bytes) {
  return cudaMemsetAsync(address, value, bytes, nullptr);
}

// Memory in the order of a stream. A pool is a name only.

PARALET_EXPORT int cudaMallocAsync(void** address, std::size_t bytes, StreamHandle handle) {
  if (device().stream(handle) == nullptr) return noted(cuda::invalid_resource_handle);
  return allocate(address, bytes, MemoryKind::device);
}

PARALET_EXPORT int cudaMallocFromPoolAsync(void** address, std::size_t bytes, void* pool, StreamHandle handle) {
  if (pool == nullptr) return noted(cuda::invalid_value);
  return cudaMallocAsync(address, bytes, handle);
}

PARALET_EXPORT int cudaFreeAsync(void* address, StreamHandle handle) {
  if (address == nullptr) return failure();
  if (device().stream(handle) == nullptr) return noted(cuda::invalid_resource_handle);
  const auto allocation = device().memory().remove(address, MemoryKind::device);
  if (!allocation) return noted(cuda::invalid_value);
  return queue(handle, [allocation = *allocation] { Memory::release(allocation); });
}

PARALET_EXPORT int cudaMemPoolCreate(void** pool, const void*) {
  static char only;  // nothing distinguishes pools
  if (pool == nullptr) return noted(cuda::invalid_value);
  *pool = &only;
  return failure();
}

PARALET_EXPORT int cudaMemPoolDestroy(void* pool) { return pool == nullptr ? noted(cuda::invalid_value) : failure(); }

// How long a pool keeps memory: it keeps none.
PARALET_EXPORT int cudaMemPoolSetAttribute(void* pool, int, void*) {
  return pool == nullptr ? noted(cuda::invalid_value) : failure();
}

// Streams

PARALET_EXPORT int cudaStreamCreate(StreamHandle* handle) { return create_stream(handle, 0, 0); }

PARALET_EXPORT int cudaStreamCreateWithFlags(StreamHandle* handle, unsigned flags) {
  return create_stream(handle, flags, 0);
}

PARALET_EXPORT int cudaStreamCreateWithPriority(StreamHandle* handle, unsigned flags, int priority) {
  return create_stream(handle, flags, priority);
}

PARALET_EXPORT int cudaStreamDestroy(StreamHandle handle) {
  return device().destroy_stream(handle) ? failure() : noted(cuda::invalid_resource_handle);
}

PARALET_EXPORT int cudaStreamQuery(StreamHandle handle) {
  const auto stream = device().stream(handle);
  if (stream == nullptr) return noted(cuda::invalid_resource_handle);
  if (device().failure() != cuda::success) return failure();
  return stream->idle() ? cuda::success : noted(cuda::not_ready);
}

PARALET_EXPORT int cudaStreamSynchronize(StreamHandle handle) {
  const auto stream = device().stream(handle);
  if (stream == nullptr) return noted(cuda::invalid_resource_handle);
  device().mark(stream)->wait();
  return failure();
}

PARALET_EXPORT int cudaStreamWaitEvent(StreamHandle handle, EventHandle event_handle, unsigned) {
  const auto stream = device().stream(handle);
  const auto event = device().event(event_handle);
  if (stream == nullptr || event == nullptr) return noted(cuda::invalid_resource_handle);
  if (auto recorded = event->recorded(); recorded != nullptr && !recorded->done()) {
    device().submit(stream, {}, {std::move(recorded)});
  }
  return failure();
}

PARALET_EXPORT int cudaStreamGetPriority(StreamHandle handle, int* priority) {
  const auto stream = device().stream(handle);
  if (stream == nullptr) return noted(cuda::invalid_resource_handle);
  if (priority != nullptr) *priority = stream->priority();
  return failure();
}

PARALET_EXPORT int cudaStreamGetFlags(StreamHandle handle, unsigned* flags) {
  const auto stream = device().stream(handle);
  if (stream == nullptr) return noted(cuda::invalid_resource_handle);
  if (flags != nullptr) *flags = stream->blocking() ? 0 : cuda::stream_non_blocking;
  return failure();
}

PARALET_EXPORT int cudaStreamGetId(StreamHandle handle, unsigned long long* id) {
  const auto stream = device().stream(handle);
  if (stream == nullptr) return noted(cuda::invalid_resource_handle);
  if (id != nullptr) *id = stream->id();
  return failure();
}

PARALET_EXPORT int cudaStreamIsCapturing(StreamHandle handle, int* state) { return capture_state(handle, state); }

PARALET_EXPORT int cudaStreamGetCaptureInfo(StreamHandle handle, int* state, ...) {
  return capture_state(handle, state);
}

PARALET_EXPORT int cudaThreadExchangeStreamCaptureMode(int* mode) {
  thread_local int current = 0;  // cudaStreamCaptureModeGlobal
  if (mode == nullptr) return noted(cuda::invalid_value);
  std::swap(*mode, current);
  return failure();
}

PARALET_EXPORT int cudaLaunchHostFunc(StreamHandle handle, void (*function)(void*), void* argument) {
  if (function == nullptr) return noted(cuda::invalid_value);
  return queue(handle, [=] {
    // As CUDA: not after the device has failed.
    if (device().failure() == cuda::success) function(argument);
  });
}

// Events

PARALET_EXPORT int cudaEventCreate(EventHandle* handle) { return create_event(handle, 0); }

PARALET_EXPORT int cudaEventCreateWithFlags(EventHandle* handle, unsigned flags) { return create_event(handle, flags); }

PARALET_EXPORT int cudaEventDestroy(EventHandle handle) {
  return device().destroy_event(handle) ? failure() : noted(cuda::invalid_resource_handle);
}

PARALET_EXPORT int cudaEventRecord(EventHandle event_handle, StreamHandle handle) {
  const auto stream = device().stream(handle);
  const auto event = device().event(event_handle);
  if (stream == nullptr || event == nullptr) return noted(cuda::invalid_resource_handle);
  event->record(device().mark(stream));
  return failure();
}

PARALET_EXPORT int cudaEventRecordWithFlags(EventHandle event_handle, StreamHandle handle, unsigned) {
  return cudaEventRecord(event_handle, handle);
}

PARALET_EXPORT int cudaEventQuery(EventHandle event_handle) {
  const auto event = device().event(event_handle);
  if (event == nullptr) return noted(cuda::invalid_resource_handle);
  if (device().failure() != cuda::success) return failure();
  const auto recorded = event->recorded();
  return recorded == nullptr || recorded->done() ? cuda::success : noted(cuda::not_ready);
}

PARALET_EXPORT int cudaEventSynchronize(EventHandle event_handle) {
  const auto event = device().event(event_handle);
  if (event == nullptr) return noted(cuda::invalid_resource_handle);
  if (const auto recorded = event->recorded()) recorded->wait();
  return failure();
}

PARALET_EXPORT int cudaEventElapsedTime(float* milliseconds, EventHandle from_handle, EventHandle to_handle) {
  const auto from = device().event(from_handle);
  const auto to = device().event(to_handle);
  if (milliseconds == nullptr) return noted(cuda::invalid_value);
  if (from == nullptr || to == nullptr || !from->timed() || !to->timed()) return noted(cuda::invalid_resource_handle);
  const auto began = from->recorded();
  const auto ended = to->recorded();
  if (began == nullptr || ended == nullptr) return noted(cuda::invalid_resource_handle);
  if (!began->done() || !ended->done()) return noted(cuda::not_ready);
  *milliseconds = std::chrono::duration<float, std::milli>(ended->at() - began->at()).count();
  return failure();
}

PARALET_EXPORT int cudaEventElapsedTime_v2(float* milliseconds, EventHandle from, EventHandle to) {
  return cudaEventElapsedTime(milliseconds, from, to);
}

// Kernels

PARALET_EXPORT int cudaFuncGetAttributes(cuda::FunctionAttributes* attributes, const void*) {
  if (attributes == nullptr) return noted(cuda::invalid_value);
  const int architecture =
      attribute_of(cuda::compute_capability_major) * 10 + attribute_of(cuda::compute_capability_minor);
  *attributes = {};
  attributes->max_threads_per_block = attribute_of(cuda::max_threads_per_block);
  attributes->ptx_version = architecture;
  attributes->binary_version = architecture;
  attributes->max_dynamic_shared_bytes = attribute_of(cuda::max_shared_memory_per_block_optin);
  return failure();
}

// How much of the cache is shared memory: a block's memory is the host's.
PARALET_EXPORT int cudaFuncSetAttribute(const void*, int, int) { return failure(); }

PARALET_EXPORT int cudaGetFuncBySymbol(void** function, const void* symbol) {
  if (function == nullptr) return noted(cuda::invalid_value);
  *function = const_cast<void*>(symbol);
  return failure();
}

PARALET_EXPORT int cudaLaunchKernel(const void* function, cuda::Dim3 grid, cuda::Dim3, void** parameters, std::size_t,
                                    StreamHandle stream) {
  if (device().failure() != cuda::success) return failure();
  return noted(
      launch({.function = function, .grid = grid, .parameters = parameters, .extra = nullptr, .stream = stream}));
}

PARALET_EXPORT int cudaLaunchKernelExC(const cuda::LaunchConfig* config, const void* function, void** parameters) {
  if (config == nullptr) return noted(cuda::invalid_value);
  return cudaLaunchKernel(function, config->grid, config->block, parameters, config->shared_bytes, config->stream);
}

// Driver functions

PARALET_EXPORT int cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long, int* found) {
  if (name == nullptr || function == nullptr) return noted(cuda::invalid_value);
  *function = driver_function(name);
  constexpr int entry_found = 0;
  constexpr int entry_unknown = 1;
  if (found != nullptr) *found = *function != nullptr ? entry_found : entry_unknown;
  if (*function != nullptr) return cuda::success;
  debug(std::string("there is no driver function ") + name);
  return noted(cuda::symbol_not_found);
}

PARALET_EXPORT int cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                                    unsigned long long flags, int* found) {
  return cudaGetDriverEntryPoint(name, function, flags, found);
}

// What every other function of the runtime is replaced by in an attached library (attach.cpp).
extern "C" int paralet_cpu_device_not_supported(const char* call) { return not_supported(call); }
