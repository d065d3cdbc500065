// SPDX-License-Identifier: Apache-2.0
// The NCCL that this process drives, and what its kernels are.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cuda_abi.hpp"
#include "kernels/kernel.hpp"

namespace paralet::cpu_device {

struct AttachedLibrary {
  std::string path;
  Layout layout;
  std::vector<Function> functions;
  std::unordered_map<const void*, std::string_view> kernels;  // by address of the host's stub, as launches name them
  int version = 0;
};

// The library, from the end of attach() on; null before.
const AttachedLibrary* attached();

// Loads the library at `path`, puts the device's functions in place of the CUDA runtime that it carries, and reads its
// tables of kernels. Once per process; again with the same path does nothing. Throws std::runtime_error with a
// sentence.
void attach(const std::string& path, const Layout& layout);

// A launch as NCCL asks for it.
struct LaunchRequest {
  const void* function;
  cuda::Dim3 grid;
  void** parameters;  // addresses of the arguments, or null
  void** extra;       // a buffer with all arguments, or null
  void* stream;
};

// Queues a launch in its stream.
cuda::Error launch(const LaunchRequest& request);

// The address of a CUDA driver function of the device, or null.
void* driver_function(std::string_view name);

}  // namespace paralet::cpu_device
