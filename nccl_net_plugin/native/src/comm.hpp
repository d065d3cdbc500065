// SPDX-License-Identifier: Apache-2.0
// What NCCL calls comms: listeners, and the two ends of a connection. A comm owns no QP; its messages travel on those
// that the device shares among all connections to the peer.
#pragma once

#include <memory>
#include <span>

#include "engine/device.hpp"
#include "operation_pool.hpp"
#include "paralet_nccl_net.h"

namespace paralet::plugin {

inline constexpr unsigned kMaxReceives = 8;  ///< that one irecv may group
inline constexpr std::size_t kMaxMessageBytes = NCCL_MAX_NET_SIZE;

/// Memory that NCCL has registered. It belongs to the device, not to the comm through which it came.
struct Memory {
  std::shared_ptr<Device> device;
  std::byte* base = nullptr;
  std::size_t length = 0;
  std::uint32_t rkey = 0;
  bool on_device = false;  ///< a GPU's

  [[nodiscard]] bool holds(const void* data, std::size_t bytes) const {
    if (bytes == 0) return true;
    const auto offset = reinterpret_cast<std::uintptr_t>(data) - reinterpret_cast<std::uintptr_t>(base);
    return offset <= length && bytes <= length - offset;
  }
};

class ListenComm {
 public:
  explicit ListenComm(std::shared_ptr<Device> device);
  ListenComm(const ListenComm&) = delete;
  ListenComm& operator=(const ListenComm&) = delete;
  /// Connections that nobody has accepted are closed.
  ~ListenComm();

  [[nodiscard]] std::span<const std::byte> handle() const { return listener_->handle; }
  /// The next connection, nullptr when none has come yet.
  std::shared_ptr<Connection> accept();
  [[nodiscard]] const std::shared_ptr<Device>& device() const { return device_; }

 private:
  std::shared_ptr<Device> device_;
  std::shared_ptr<Listener> listener_;
};

/// One message as NCCL passes it.
struct Transfer {
  void* data = nullptr;
  std::size_t bytes = 0;
  int tag = 0;
  const Memory* memory = nullptr;  ///< nullptr: not registered
};

/// One end of a connection. Requests are posted and tested by one thread at a time; everything else may come from
/// another thread, as NCCL does it.
class DataComm {
 public:
  enum class Direction { kSend, kReceive };

  DataComm(std::shared_ptr<Device> device, std::shared_ptr<Connection> connection, Direction direction);
  DataComm(const DataComm&) = delete;
  DataComm& operator=(const DataComm&) = delete;
  /// Closes. What has not been sent or received fails; returns when the engine uses none of its memory any more.
  ~DataComm();

  [[nodiscard]] Direction direction() const { return direction_; }
  [[nodiscard]] const std::shared_ptr<Device>& device() const { return device_; }

  /// Starts one send, or a group of receives that finish together. `operation` becomes nullptr when as many are under
  /// way as a comm holds.
  ncclResult_t post(std::span<const Transfer> transfers, Operation** operation);
  /// Starts waiting until what has been received at `data`, in memory of a GPU, is in its place.
  ncclResult_t fence(const Memory& memory, void* data, Operation** operation);
  /// Whether all parts are done, and if so their bytes. A finished operation is free again.
  ncclResult_t test(Operation& operation, bool* done, std::span<int> bytes);
  /// To be called before memory is deregistered: if messages are still under way in it, this comm is being given up,
  /// and is closed.
  void let_go(const Memory& memory);

 private:
  /// Whether a part that satisfies `predicate` is not finished.
  template <typename Predicate>
  [[nodiscard]] bool any_pending(Predicate predicate);
  /// Starts closing, and waits until the engine is done with every part that satisfies `predicate`.
  template <typename Predicate>
  void close_and_wait(Predicate predicate);
  ncclResult_t failed(const Request& request);
  [[nodiscard]] const char* verb() const { return direction_ == Direction::kSend ? "send to" : "receive from"; }

  std::shared_ptr<Device> device_;
  std::shared_ptr<Connection> connection_;
  Direction direction_;
  OperationPool messages_;
  OperationPool fences_;  ///< apart, so that a flush finds room beside as many receives as there may be
};

}  // namespace paralet::plugin
