// SPDX-License-Identifier: Apache-2.0
// The plugin as a whole, one per process: its devices, its users and pending connects.
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

/// Properties of a device, common to all versions. The strings live as long as the process.
struct DeviceProperties {
  const char* name = nullptr;
  const char* pci_path = nullptr;  ///< nullptr: not a PCI device
  std::uint64_t guid = 0;
  int pointers = 0;  ///< NCCL_PTR_* bits
  int speed_mbps = 0;
  int port = 0;
};

/// Calls throw PluginError or the engine's errors; abi.cpp turns them into results.
class Core {
 public:
  /// Never destroyed: versions 8 to 10 have no finalize, so the plugin's threads run until the process ends.
  static Core& instance();

  /// Adds a user. The first one reads the configuration and looks for devices.
  void* open_context(ncclDebugLogger_t logger);
  /// Adds a permanent user, for versions 8 to 10.
  void open_forever(ncclDebugLogger_t logger);
  /// Removes a user. The last one closes all devices; the next `open` reads the configuration again.
  void close_context(void* context);

  int devices();
  DeviceProperties properties(int device);
  /// NCCL_PTR_* bits of an open device; 0 after the last finalize.
  int pointers(const Device& device);

  /// Registered memory of all devices.
  MemoryHandles& memories() { return memories_; }

  std::unique_ptr<ListenComm> listen(int device);
  /// nullptr until the connection is open: call again with the same handle.
  std::unique_ptr<DataComm> connect(int device, HandleBytes handle);
  /// nullptr until a peer has connected.
  static std::unique_ptr<DataComm> accept(ListenComm& listener);

 private:
  struct Nic {
    Interface interface;
    DeviceProperties properties;
    std::shared_ptr<Device> device;  ///< opened on first use
  };
  /// A user with a finalize call. Only its address is used.
  struct Context {};
  /// A connect in progress.
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
  MemoryHandles memories_;
};

}  // namespace paralet::plugin
