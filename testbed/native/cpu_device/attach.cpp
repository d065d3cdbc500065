// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cctype>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "elf_symbols.hpp"
#include "functions.hpp"
#include "library.hpp"
#include "log.hpp"
#include "patch.hpp"

extern "C" int paralet_cpu_device_not_supported(const char* call);

namespace paralet::cpu_device {

namespace {

constexpr std::string_view function_prefix = "ncclDevFunc_";

// The functions of the CUDA runtime's interface, such as cudaMalloc.
bool is_runtime_call(const Symbol& symbol) {
  constexpr std::string_view prefix = "cuda";
  return symbol.is_function && symbol.name.starts_with(prefix) && symbol.name.size() > prefix.size() &&
         std::isupper(static_cast<unsigned char>(symbol.name[prefix.size()])) != 0;
}

// NCCL may be built to use the default stream of each thread; those functions have a suffix. The versions of a function
// of one interface differ in arguments that the device does not look at.
std::string_view without_suffix(std::string_view name) {
  for (const std::string_view suffix : {"_ptsz", "_ptds"}) {
    if (name.ends_with(suffix)) name.remove_suffix(suffix.size());
  }
  for (const std::string_view capture : {"cudaStreamGetCaptureInfo_v2", "cudaStreamGetCaptureInfo_v3"}) {
    if (name == capture) return "cudaStreamGetCaptureInfo";
  }
  return name;
}

// This library, whose exported functions take the places.
class Self {
 public:
  Self() {
    Dl_info info{};
    if (::dladdr(reinterpret_cast<const void*>(&paralet_cpu_device_not_supported), &info) != 0) {
      handle_ = ::dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    }
    if (handle_ == nullptr) throw std::runtime_error("the CPU device does not find its own functions");
  }
  ~Self() { ::dlclose(handle_); }
  Self(const Self&) = delete;
  Self& operator=(const Self&) = delete;

  const void* function(std::string_view name) const { return ::dlsym(handle_, std::string(name).c_str()); }

 private:
  void* handle_ = nullptr;
};

void replace_runtime(const std::vector<Symbol>& symbols, std::byte* base, const std::string& path) {
  const Self self;
  std::vector<Replacement> replacements;
  std::vector<std::byte*> unsupported;
  std::vector<std::string> unsupported_names;
  for (const auto& symbol : symbols) {
    if (!is_runtime_call(symbol)) continue;
    // NCCL has placeholders for what some releases of CUDA lack: they return an error, in 6 bytes.
    if (symbol.bytes < jump_bytes) continue;
    const void* function = self.function(without_suffix(symbol.name));
    if (function != nullptr) {
      replacements.push_back({.at = base + symbol.value, .function = function});
    } else {
      unsupported.push_back(base + symbol.value);
      unsupported_names.push_back(symbol.name);
    }
  }
  if (replacements.empty()) throw std::runtime_error(path + " carries no CUDA runtime that could be replaced");
  const std::size_t served = replacements.size();
  const auto refusals = bind(paralet_cpu_device_not_supported, unsupported_names);
  for (std::size_t i = 0; i < refusals.size(); ++i) {
    replacements.push_back({.at = unsupported[i], .function = refusals[i]});
  }
  replace(replacements);
  debug("replaced " + std::to_string(served) + " functions of the CUDA runtime in " + path + ", and " +
        std::to_string(refusals.size()) + " by one that returns cudaErrorNotSupported");
}

// NCCL's table of device functions holds the addresses of their host stubs, whose names say what the functions do.
void read_kernels(const std::vector<Symbol>& symbols, std::byte* base, AttachedLibrary& library) {
  static std::vector<std::unique_ptr<std::string>> names;  // kept for the process
  const auto keep = [](std::string_view text) -> std::string_view {
    return *names.emplace_back(std::make_unique<std::string>(text));
  };
  std::unordered_map<const void*, std::string_view> functions;
  std::optional<std::span<void* const>> table;
  for (const auto& symbol : symbols) {
    const std::byte* at = base + symbol.value;
    if (!symbol.is_function) {
      if (symbol.name == "ncclDevFuncTable") {
        table.emplace(reinterpret_cast<void* const*>(at), symbol.bytes / sizeof(void*));
      }
      continue;
    }
    const std::string_view name = identifier(symbol.name);
    if (name.starts_with(function_prefix)) {
      functions.emplace(at, keep(name.substr(function_prefix.size())));
    } else if (name.find("Kernel_") != std::string_view::npos || name.find("oneRankReduce") != std::string_view::npos) {
      library.kernels.emplace(at, keep(name));
    }
  }
  if (!table) throw std::runtime_error(library.path + " has no table of device functions (ncclDevFuncTable)");
  for (const void* stub : *table) {
    const auto found = functions.find(stub);
    library.functions.push_back(found == functions.end() ? Function{} : parse_function(found->second));
  }
}

int nccl_version(void* handle) {
  int version = 0;
  auto* const ask = reinterpret_cast<int (*)(int*)>(::dlsym(handle, "ncclGetVersion"));
  if (ask == nullptr || ask(&version) != 0) throw std::runtime_error("the library has no ncclGetVersion");
  return version;
}

std::mutex attaching;
std::atomic<const AttachedLibrary*> current = nullptr;

}  // namespace

const AttachedLibrary* attached() { return current.load(std::memory_order_acquire); }

void attach(const std::string& path, const Layout& layout) {
  const std::lock_guard lock(attaching);
  if (const AttachedLibrary* before = attached()) {
    if (before->path == path) return;
    throw std::runtime_error("this process already drives " + before->path + ", so it cannot drive " + path);
  }
  const auto symbols = read_symbols(path);
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(std::string("the library cannot be loaded: ") + ::dlerror());
  link_map* map = nullptr;
  if (::dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) throw std::runtime_error(::dlerror());
  auto* const base = std::bit_cast<std::byte*>(map->l_addr);
  auto library = std::make_unique<AttachedLibrary>();
  library->path = path;
  library->layout = layout;
  library->version = nccl_version(handle);
  read_kernels(symbols, base, *library);
  replace_runtime(symbols, base, path);
  current.store(library.release(), std::memory_order_release);  // for the rest of the process, as the library itself
}

}  // namespace paralet::cpu_device

#define PARALET_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

int failed(std::string_view sentence, char* error, std::size_t error_bytes) {
  if (error_bytes > 0) {
    const std::size_t length = std::min(sentence.size(), error_bytes - 1);
    std::memcpy(error, sentence.data(), length);
    error[length] = '\0';
  }
  return -1;
}

}  // namespace

// The fields of PARALET_LAYOUT (layout.hpp), a line each.
PARALET_EXPORT const char* paralet_cpu_device_layout_fields() { return paralet::cpu_device::layout_fields(); }

// attach() for Python. `values`: paralet::cpu_device::decode_layout. Returns 0, or -1 with a sentence in `error`.
PARALET_EXPORT int paralet_cpu_device_attach(const char* path, std::uint32_t generation, const std::uint32_t* values,
                                             std::size_t count, char* error, std::size_t error_bytes) {
  using namespace paralet::cpu_device;
  try {
    Layout layout;
    if (!decode_layout(generation, {values, count}, layout)) {
      return failed("the layout has a form that this build of the CPU device does not know", error, error_bytes);
    }
    attach(path, layout);
    return 0;
  } catch (const std::exception& wrong) {
    return failed(wrong.what(), error, error_bytes);
  }
}
