// SPDX-License-Identifier: Apache-2.0
// The plugin as a whole, one per process: which devices there are, who uses the plugin, what is being connected. The
// versions of NCCL's interface are thin shims over this.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "comm.hpp"
#include "config.hpp"
#include "devices.hpp"
#include "handle_state.hpp"
#include "paralet_nccl_net.h"

namespace paralet::plugin {

/// What getProperties tells of a device, whatever the version. The strings live as long as the process.
struct DeviceProperties {
  const char* name = nullptr;
  const char* pci_path = nullptr;  ///< nullptr: no PCI device
  std::uint64_t guid = 0;
  int pointers = 0;  ///< NCCL_PTR_* bits
  int speed_mbps = 0;
  int port = 0;
};

/// Calls throw PluginError or the engine's errors; the C boundary in abi.cpp turns them into results.
class Core {
 public:
  /// Never destroyed: versions 8 to 10 have no call that ends the plugin, so its threads may run until the process
  /// ends.
  static Core& instance();

  /// One user more. The first one reads the configuration and looks for devices.
  void* open_context(ncclDebugLogger_t logger);
  /// A user that never goes: versions 8 to 10. Further ones change nothing.
  void open_forever(ncclDebugLogger_t logger);
  /// The last user ends all threads; the next one begins afresh.
  void close_context(void* context);

  int devices();
  DeviceProperties properties(int device);
  /// NCCL_PTR_* bits of an open device; none after the last finalize.
  int pointers(const Device& device);

  std::unique_ptr<ListenComm> listen(int device);
  /// nullptr until the connection is there: call again with the same handle.
  std::unique_ptr<DataComm> connect(int device, HandleBytes handle);
  /// nullptr until somebody has connected.
  static std::unique_ptr<DataComm> accept(ListenComm& listener);

 private:
  struct Nic {
    Interface interface;
    DeviceProperties properties;
    std::shared_ptr<Device> device;  ///< opened on first use
  };
  /// A user that will go: only its address matters.
  struct Context {};
  /// A connect under way.
  struct Pending {
    Handle target{};
    std::shared_ptr<Device> device;
    std::shared_ptr<Connection> connection;
  };

  Core() = default;
  void start(ncclDebugLogger_t logger);
  void log_banner() const;
  std::shared_ptr<Device> open(int device);
  Nic& nic(int device);
  void check_running() const;

  std::mutex mutex_;
  bool forever_ = false;
  std::vector<std::unique_ptr<Context>> contexts_;
  Settings settings_;
  std::vector<Nic> nics_;
  std::map<std::uint64_t, Pending> pending_;
};

}  // namespace paralet::plugin
