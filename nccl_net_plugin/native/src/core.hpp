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

#include "base/owner_process.hpp"
#include "comm.hpp"
#include "config.hpp"
#include "devices.hpp"
#include "handle_state.hpp"
#include "paralet_nccl_net.h"

namespace paralet::plugin {

/// Calls throw PluginError or the engine's errors; abi.cpp turns them into results.
class Core {
 public:
  /// Never destroyed: versions 8 to 10 have no finalize, so the plugin's threads run until the process ends. A forked
  /// child has its own.
  static Core& instance();

  /// Adds a user. The first one reads the configuration and looks for devices. `traffic_class` is the communicator's,
  /// NCCL_NET_TRAFFIC_CLASS_UNDEF for the configured one.
  void* open_context(ncclDebugLogger_t logger, int traffic_class);
  /// Adds a permanent user, for versions 8 to 10.
  void open_forever(ncclDebugLogger_t logger);
  /// Takes a user's hint: how many peers its next connections will be used with at once.
  void expect_peers(void* context, int peers);
  /// Removes a user. The last one closes all devices; the next `open` reads the configuration again.
  void close_context(void* context);

  /// The number of devices, fused ones included. The first call after `open` says what NCCL takes for NICs.
  int devices();
  DeviceProperties properties(int device);
  /// Makes a device of several others and returns its number.
  int make_fused(std::span<const int> members);
  /// NCCL_PTR_* bits of an open device; 0 after the last finalize.
  int pointers(const Device& device);

  /// Registered memory of all devices.
  MemoryHandles& memories() { return memories_; }

  /// The rkey of registered memory for messages over `device`. Communicators with different traffic classes use
  /// different devices of the engine on one NIC; memory is registered with the others on its first use there. Throws
  /// PluginError when that is not possible.
  std::uint32_t rkey_for(const Memory& memory, const std::shared_ptr<Device>& device);

  // `context` is nullptr in versions 8 to 10.
  std::unique_ptr<ListenComm> listen(void* context, int device);
  /// nullptr until the connection is open: call again with the same handle. `traffic_class`: version 10 passes it here.
  std::unique_ptr<DataComm> connect(void* context, int device, HandleBytes handle,
                                    int traffic_class = NCCL_NET_TRAFFIC_CLASS_UNDEF);
  /// nullptr until a peer has connected.
  static std::unique_ptr<DataComm> accept(ListenComm& listener);

 private:
  struct Nic {
    std::vector<Interface> interfaces;  ///< one, or those of a fused device's members
    DeviceProperties properties;
    std::map<std::uint8_t, std::shared_ptr<Device>> devices;  ///< by traffic class, opened on first use
  };
  /// A user with a finalize call.
  struct Context {
    int traffic_class = NCCL_NET_TRAFFIC_CLASS_UNDEF;
    int peers = 1;
  };
  /// A connect in progress.
  struct Pending {
    Handle target{};
    std::shared_ptr<Device> device;
    std::shared_ptr<Connection> connection;
  };

  Core() = default;
  void start(ncclDebugLogger_t logger);
  void log_banner() const;
  void restore_fused();
  [[nodiscard]] Nic fused(std::span<const int> members) const;
  [[nodiscard]] DeviceOptions options_of(const Nic& nic) const;
  std::shared_ptr<Device> open(int device, int traffic_class);
  Nic& nic(int device);
  Context context_of(void* context);
  void check_running() const;

  OwnerProcess owner_;
  std::mutex mutex_;
  bool forever_ = false;
  std::vector<std::unique_ptr<Context>> contexts_;
  Settings settings_;
  std::vector<Nic> nics_;  ///< fused ones last
  /// Members of the fused devices. They outlive the last finalize: NCCL goes on to use their numbers, unless it has
  /// unloaded the plugin. Then it asks for the number of devices before anything else.
  std::vector<std::vector<int>> fusions_;
  bool just_started_ = false;
  std::map<std::uint64_t, Pending> pending_;
  MemoryHandles memories_;
};

}  // namespace paralet::plugin
