// SPDX-License-Identifier: Apache-2.0
// Calls a plugin's vtable, of any version, as NCCL does.
#include <dlfcn.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <string_view>

#include "net.hpp"
#include "paralet_nccl_net.h"

namespace paralet::driver {
namespace {

struct Unload {
  void operator()(void* library) const { ::dlclose(library); }
};
using Library = std::unique_ptr<void, Unload>;

bool verbose() {
  const char* level = std::getenv("NCCL_DEBUG");
  return level != nullptr && (std::string_view(level) == "INFO" || std::string_view(level) == "TRACE");
}

/// The plugin's last warning, which says why a call failed. Plugins also log from their own threads.
struct LastWarning {
  std::mutex mutex;
  std::string text;
} last_warning;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): the logger has no context

/// The logger given to the plugin: warnings always, all else with NCCL_DEBUG=INFO or TRACE.
void log(ncclDebugLogLevel level, unsigned long, const char*, int, const char* format, ...) {
  static const bool kVerbose = verbose();
  if (level > NCCL_LOG_WARN && !kVerbose) return;
  std::array<char, 2048> text;
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "%s\n", text.data());
  if (level == NCCL_LOG_WARN) {
    const std::lock_guard lock(last_warning.mutex);
    last_warning.text = text.data();
  }
}

const char* text_of(ncclResult_t result) {
  static constexpr const char* kTexts[] = {"success",        "CUDA error",       "system error",
                                           "internal error", "invalid argument", "invalid usage",
                                           "remote error",   "in progress",      "timeout"};
  return result >= 0 && result < ncclNumResults ? kTexts[result] : "unknown result";
}

void check(ncclResult_t result, const char* call) {
  if (result == ncclSuccess) return;
  const std::lock_guard lock(last_warning.mutex);
  const std::string why = last_warning.text.empty() ? "" : ": " + last_warning.text;
  const std::string sentence = std::string("the plugin's ") + call + " failed with " + text_of(result) + why;
  if (result == ncclRemoteError) throw PeerLost(sentence);
  throw NetError(sentence);
}

/// For destructors.
void warn(ncclResult_t result, const char* call) {
  if (result != ncclSuccess) std::fprintf(stderr, "the plugin's %s failed: %s\n", call, text_of(result));
}

template <int kVersion, typename Table, typename Properties>
class TableNet final : public Net {
 public:
  TableNet(Library library, const Table& table, int device)
      : library_(std::move(library)), table_(table), device_(device) {
    check(init(), "init");
    int devices = 0;
    check(table_.devices(&devices), "devices");
    if (device_ >= devices) {
      throw NetError("device " + std::to_string(device_) + " does not exist: the plugin has " +
                     std::to_string(devices) + " devices, numbered from 0");
    }
    Properties properties{};
    check(table_.getProperties(device_, &properties), "getProperties");
    name_ = std::string(table_.name) + " v" + std::to_string(kVersion) + ", " + properties.name;
  }
  TableNet(const TableNet&) = delete;
  TableNet& operator=(const TableNet&) = delete;
  ~TableNet() override {
    if constexpr (kVersion >= 11) warn(table_.finalize(context_), "finalize");
  }

  [[nodiscard]] std::string name() const override { return name_; }

  void* listen(Handle& handle) override {
    void* comm = nullptr;
    if constexpr (kVersion >= 11) {
      check(table_.listen(context_, device_, handle.bytes.data(), &comm), "listen");
    } else {
      check(table_.listen(device_, handle.bytes.data(), &comm), "listen");
    }
    return comm;
  }
  void* connect(Handle& handle) override {
    void* comm = nullptr;
    if constexpr (kVersion >= 11) {
      check(table_.connect(context_, device_, handle.bytes.data(), &comm, nullptr), "connect");
    } else if constexpr (kVersion == 10) {
      ncclNetCommConfig_v10_t config{NCCL_NET_TRAFFIC_CLASS_UNDEF};
      check(table_.connect(device_, &config, handle.bytes.data(), &comm, nullptr), "connect");
    } else {
      check(table_.connect(device_, handle.bytes.data(), &comm, nullptr), "connect");
    }
    return comm;
  }
  void* accept(void* listen_comm) override {
    void* comm = nullptr;
    check(table_.accept(listen_comm, &comm, nullptr), "accept");
    return comm;
  }
  void close_listen(void* listen_comm) override { warn(table_.closeListen(listen_comm), "closeListen"); }
  void close_send(void* send_comm) override { warn(table_.closeSend(send_comm), "closeSend"); }
  void close_receive(void* receive_comm) override { warn(table_.closeRecv(receive_comm), "closeRecv"); }

  void* register_memory(void* comm, void* data, std::size_t bytes) override {
    void* memory = nullptr;
    check(table_.regMr(comm, data, bytes, NCCL_PTR_HOST, &memory), "regMr");
    return memory;
  }
  void deregister_memory(void* comm, void* memory) override { warn(table_.deregMr(comm, memory), "deregMr"); }

  void* isend(void* send_comm, void* data, std::size_t bytes, int tag, void* memory) override {
    void* request = nullptr;
    if constexpr (kVersion >= 10) {
      check(table_.isend(send_comm, data, bytes, tag, memory, nullptr, &request), "isend");
    } else if constexpr (kVersion == 9) {
      check(table_.isend(send_comm, data, bytes, tag, memory, &request), "isend");
    } else {
      check(table_.isend(send_comm, data, int_size(bytes), tag, memory, &request), "isend");
    }
    return request;
  }
  void* irecv(void* receive_comm, void* data, std::size_t bytes, int tag, void* memory) override {
    void* request = nullptr;
    if constexpr (kVersion >= 10) {
      void* phandle = nullptr;
      check(table_.irecv(receive_comm, 1, &data, &bytes, &tag, &memory, &phandle, &request), "irecv");
    } else if constexpr (kVersion == 9) {
      check(table_.irecv(receive_comm, 1, &data, &bytes, &tag, &memory, &request), "irecv");
    } else {
      int size = int_size(bytes);
      check(table_.irecv(receive_comm, 1, &data, &size, &tag, &memory, &request), "irecv");
    }
    return request;
  }
  std::optional<std::size_t> test(void* request) override {
    int done = 0;
    int size = 0;
    check(table_.test(request, &done, &size), "test");
    if (done == 0) return std::nullopt;
    return static_cast<std::size_t>(size);
  }

 private:
  ncclResult_t init() {
    if constexpr (kVersion >= 11) {
      ncclNetCommConfig_v11_t config{NCCL_NET_TRAFFIC_CLASS_UNDEF};
      return table_.init(&context_, 1, &config, log, nullptr);
    } else if constexpr (kVersion == 10) {
      return table_.init(log, nullptr);
    } else {
      return table_.init(log);
    }
  }
  static int int_size(std::size_t bytes) {
    if (bytes > std::numeric_limits<int>::max())
      throw NetError("version 8 of the interface cannot carry messages of 2 GiB or more");
    return static_cast<int>(bytes);
  }

  Library library_;
  const Table& table_;
  int device_;
  void* context_ = nullptr;
  std::string name_;
};

template <int kVersion, typename Table, typename Properties>
std::unique_ptr<Net> open(Library& library, int version, int device) {
  if (version != 0 && version != kVersion) return nullptr;
  const std::string symbol = "ncclNetPlugin_v" + std::to_string(kVersion);
  const auto* table = static_cast<const Table*>(::dlsym(library.get(), symbol.c_str()));
  if (table == nullptr) return nullptr;
  return std::make_unique<TableNet<kVersion, Table, Properties>>(std::move(library), *table, device);
}

}  // namespace

std::unique_ptr<Net> load_plugin(const std::string& path, int version, int device) {
  Library library(::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (!library) throw NetError(std::string("the plugin cannot be loaded: ") + ::dlerror());
  if (auto net = open<12, ncclNet_v12_t, ncclNetProperties_v12_t>(library, version, device)) return net;
  if (auto net = open<11, ncclNet_v11_t, ncclNetProperties_v11_t>(library, version, device)) return net;
  if (auto net = open<10, ncclNet_v10_t, ncclNetProperties_v10_t>(library, version, device)) return net;
  if (auto net = open<9, ncclNet_v9_t, ncclNetProperties_v9_t>(library, version, device)) return net;
  if (auto net = open<8, ncclNet_v8_t, ncclNetProperties_v8_t>(library, version, device)) return net;
  throw NetError(path + " exports no vtable ncclNetPlugin_v" + (version != 0 ? std::to_string(version) : "8 to _v12"));
}

}  // namespace paralet::driver
