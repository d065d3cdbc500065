// SPDX-License-Identifier: Apache-2.0
// The network that collectives use: the calls of NCCL's vtable that its proxy makes, the same for all versions.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

namespace paralet::driver {

/// A call of the network failed, or a plugin is unusable; the text says which and why.
struct NetError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The peer closed the connection or is gone: what made it do so is the cause, and the peer reports it.
struct PeerLost : NetError {
  using NetError::NetError;
};

/// A listener gives this handle to the peer that will connect. `connect` keeps its state in it.
struct alignas(8) Handle {
  static constexpr std::size_t kBytes = 128;
  std::array<std::byte, kBytes> bytes{};
};

/// No call blocks. Comms, requests and memory are opaque pointers of the network. Calls throw NetError when they fail;
/// only those that destructors make (close, deregister) write to standard error instead.
class Net {
 public:
  Net() = default;
  Net(const Net&) = delete;
  Net& operator=(const Net&) = delete;
  virtual ~Net() = default;

  /// For messages, as in "paralet v12, eth0".
  [[nodiscard]] virtual std::string name() const = 0;

  virtual void* listen(Handle& handle) = 0;
  /// Null: not yet connected, call again with the same handle.
  virtual void* connect(Handle& handle) = 0;
  /// Null: no connection yet, call again.
  virtual void* accept(void* listen_comm) = 0;
  virtual void close_listen(void* listen_comm) = 0;
  virtual void close_send(void* send_comm) = 0;
  virtual void close_receive(void* receive_comm) = 0;

  virtual void* register_memory(void* comm, void* data, std::size_t bytes) = 0;
  virtual void deregister_memory(void* comm, void* memory) = 0;

  /// Null: no room now, call again.
  virtual void* isend(void* send_comm, void* data, std::size_t bytes, int tag, void* memory) = 0;
  /// Null: no room now, call again.
  virtual void* irecv(void* receive_comm, void* data, std::size_t bytes, int tag, void* memory) = 0;
  /// The message's size in bytes once the request is done, which also frees the request.
  virtual std::optional<std::size_t> test(void* request) = 0;
};

/// Opens a plugin's device. `version` 0: the newest vtable that the plugin exports. Throws NetError.
std::unique_ptr<Net> load_plugin(const std::string& path, int version, int device);

/// Plain TCP sockets on an IPv4 address, as NCCL's Socket transport uses them.
std::unique_ptr<Net> tcp_net(const std::string& address);

}  // namespace paralet::driver
