// SPDX-License-Identifier: Apache-2.0
// NCCL's comms: listeners and the two ends of a connection. A comm owns no QP; its messages use the QPs that all
// connections of the device to the peer share.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "engine/device.hpp"
#include "memory_handles.hpp"
#include "operation_pool.hpp"
#include "paralet_nccl_net.h"

namespace paralet::plugin {

inline constexpr unsigned kMaxReceives = 8;  ///< receives that one irecv may group
inline constexpr std::size_t kMaxMessageBytes = NCCL_MAX_NET_SIZE;

class ListenComm {
 public:
  explicit ListenComm(std::shared_ptr<Device> device);
  ListenComm(const ListenComm&) = delete;
  ListenComm& operator=(const ListenComm&) = delete;
  /// Closes connections that have not been accepted.
  ~ListenComm();

  [[nodiscard]] std::span<const std::byte> handle() const { return listener_->handle; }
  /// The next connection, nullptr while there is none.
  std::shared_ptr<Connection> accept();
  [[nodiscard]] const std::shared_ptr<Device>& device() const { return device_; }

 private:
  std::shared_ptr<Device> device_;
  std::shared_ptr<Listener> listener_;
};

/// One message in NCCL's terms.
struct Transfer {
  void* data = nullptr;
  std::size_t bytes = 0;
  int tag = 0;
  const Memory* memory = nullptr;  ///< nullptr: not registered
  void* profiled = nullptr;        ///< NCCL's handle for profiler events about the message, nullptr: none
};

/// One end of a connection. One thread at a time posts and tests requests; all other calls may come from other threads,
/// as in NCCL.
class DataComm {
 public:
  enum class Direction { kSend, kReceive };

  DataComm(std::shared_ptr<Device> device, std::shared_ptr<Connection> connection, Direction direction);
  DataComm(const DataComm&) = delete;
  DataComm& operator=(const DataComm&) = delete;
  /// Closes the connection. Unfinished messages fail. Returns when the engine no longer uses their memory.
  ~DataComm();

  [[nodiscard]] Direction direction() const { return direction_; }
  [[nodiscard]] const std::shared_ptr<Device>& device() const { return device_; }

  /// Starts one send, or a group of receives that finish together. Sets `operation` to nullptr when the comm has as
  /// many operations as it can hold.
  ncclResult_t post(std::span<const Transfer> transfers, Operation** operation);
  /// Starts a flush: it is done when the data received at `data`, in GPU memory, is visible there.
  ncclResult_t fence(const Memory& memory, void* data, Operation** operation);
  /// Tests whether all parts are done and sets their sizes in `bytes`. A finished operation is freed.
  ncclResult_t test(Operation& operation, bool* done, std::span<int> bytes);

 private:
  /// Throws PluginError when the message cannot be sent or received.
  void check(const Transfer& transfer) const;
  ncclResult_t report_failure(Failure failure, const std::string& error);
  [[nodiscard]] const char* verb() const { return direction_ == Direction::kSend ? "send to" : "receive from"; }

  std::shared_ptr<Device> device_;
  std::shared_ptr<Connection> connection_;
  Direction direction_;
  OperationPool messages_;
  OperationPool fences_;  ///< separate, so that there is room for a flush beside the largest number of receives
};

}  // namespace paralet::plugin
