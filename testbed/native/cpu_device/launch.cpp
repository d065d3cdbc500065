// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device.hpp"
#include "library.hpp"
#include "log.hpp"

namespace paralet::cpu_device {

namespace {

// Kernels whose arguments come one by one: their number, 8 bytes or less each (PARALET_LAYOUT's `elements` generation;
// oneRankReduce of all).
constexpr std::size_t element_kernel_arguments = 3;
constexpr std::size_t one_rank_reduce_arguments = 5;

std::optional<std::vector<std::byte>> buffer_of(void** extra) {
  const std::byte* start = nullptr;
  std::size_t bytes = 0;
  for (; reinterpret_cast<std::uintptr_t>(*extra) != cuda::launch_end; extra += 2) {
    const auto mark = reinterpret_cast<std::uintptr_t>(extra[0]);
    if (mark == cuda::launch_buffer) start = static_cast<const std::byte*>(extra[1]);
    if (mark == cuda::launch_buffer_bytes) bytes = *static_cast<const std::size_t*>(extra[1]);
  }
  if (start == nullptr) return std::nullopt;
  return std::vector<std::byte>(start, start + bytes);
}

// The arguments of a launch in one buffer, 8 bytes each where they come one by one.
std::optional<std::vector<std::byte>> arguments_of(const LaunchRequest& request, std::string_view kernel,
                                                   Generation generation) {
  if (request.extra != nullptr) return buffer_of(request.extra);
  if (request.parameters == nullptr) return std::nullopt;
  if (kernel.find("oneRankReduce") != std::string_view::npos) {
    std::vector<std::byte> words(one_rank_reduce_arguments * sizeof(std::uint64_t));
    for (std::size_t i = 0; i < one_rank_reduce_arguments; ++i) {
      // The last is a bool.
      const std::size_t bytes = i + 1 < one_rank_reduce_arguments ? sizeof(std::uint64_t) : sizeof(bool);
      std::memcpy(words.data() + i * sizeof(std::uint64_t), request.parameters[i], bytes);
    }
    return words;
  }
  if (generation != Generation::elements) return std::nullopt;
  std::vector<std::byte> words(element_kernel_arguments * sizeof(std::uint64_t));
  for (std::size_t i = 0; i < element_kernel_arguments; ++i) {
    std::memcpy(words.data() + i * sizeof(std::uint64_t), request.parameters[i], sizeof(std::uint64_t));
  }
  return words;
}

// The first reason that a block gave for not running.
class FirstReason {
 public:
  void offer(std::string reason) {
    const std::lock_guard lock(mutex_);
    if (!reason_) reason_ = std::move(reason);
  }
  std::optional<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(reason_, std::nullopt);
  }

 private:
  std::mutex mutex_;
  std::optional<std::string> reason_;
};

void run(const AttachedLibrary& library, std::string_view kernel, const std::vector<std::byte>& arguments,
         unsigned blocks) {
  Device& device = Device::instance();
  if (device.failure() != cuda::success) return;
  const Library view{.layout = library.layout, .functions = library.functions, .version = library.version};
  const Launch launch{
      .library = view, .kernel = kernel, .args = arguments, .blocks = blocks, .cancelled = device.cancelled()};
  FirstReason why;
  device.blocks().run(blocks, [&](unsigned block) {
    try {
      const BlockResult result = run_block(launch, block);
      if (result.outcome == Outcome::not_supported) why.offer(result.reason);
    } catch (const std::exception& error) {
      why.offer(error.what());
    }
  });
  if (const auto reason = why.take()) {
    device.fail(cuda::not_supported, std::string(kernel) + " cannot run on the CPU: " + *reason);
  }
}

}  // namespace

cuda::Error launch(const LaunchRequest& request) {
  Device& device = Device::instance();
  const auto stream = device.stream(request.stream);
  if (stream == nullptr) return cuda::invalid_resource_handle;
  const AttachedLibrary* library = attached();
  const auto found =
      library == nullptr ? decltype(library->kernels)::const_iterator{} : library->kernels.find(request.function);
  if (library == nullptr || found == library->kernels.end()) {
    warn("a kernel was launched that is none of NCCL's");
    return cuda::not_supported;
  }
  const std::string_view kernel = found->second;
  auto arguments = arguments_of(request, kernel, library->layout.generation);
  if (!arguments) {
    warn("the arguments of the kernel " + std::string(kernel) + " came in a form that is not known");
    return cuda::not_supported;
  }
  debug("launch of " + std::string(kernel) + ", blocks: " + std::to_string(request.grid.x));
  device.submit(stream, [library, kernel, arguments = std::move(*arguments), blocks = request.grid.x] {
    run(*library, kernel, arguments, blocks);
  });
  return cuda::success;
}

}  // namespace paralet::cpu_device
