// SPDX-License-Identifier: Apache-2.0
// One direction of a connection as NCCL's proxy drives it: a staging buffer of a few slots, registered once; receives
// posted ahead of the sends; requests tested oldest first. No call blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "net.hpp"

namespace paralet::driver {

/// NCCL_STEPS.
inline constexpr unsigned kSteps = 8;

struct SlotOptions {
  std::size_t bytes = 512 << 10;  ///< size of a slot, and so of the largest message
  unsigned steps = kSteps;        ///< number of slots, and so of messages in flight
};

/// The slots of one direction, in one page-aligned allocation that is registered with a comm.
class Staging {
 public:
  Staging(Net& net, void* comm, const SlotOptions& options);
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();

  [[nodiscard]] std::span<std::byte> slot(std::uint64_t message) const {
    return {data_.get() + (message % options_.steps) * stride_, options_.bytes};
  }
  [[nodiscard]] unsigned steps() const { return options_.steps; }
  [[nodiscard]] void* memory() const { return memory_; }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  Net& net_;
  void* comm_;
  SlotOptions options_;
  std::size_t stride_;
  std::unique_ptr<std::byte[], Free> data_;
  void* memory_;
};

/// Sends messages in order. Closes its comm at the end.
class SendLink {
 public:
  /// `tag` is the sender's rank, as in NCCL.
  SendLink(Net& net, void* comm, int tag, const SlotOptions& options);
  SendLink(const SendLink&) = delete;
  SendLink& operator=(const SendLink&) = delete;
  ~SendLink();

  /// The slot of the next message; empty while all slots are in flight.
  [[nodiscard]] std::span<std::byte> free_slot() const {
    return filled_ - done_ < staging_->steps() ? staging_->slot(filled_) : std::span<std::byte>{};
  }
  /// Sends the first `bytes` of that slot, as soon as the network has room.
  void send(std::size_t bytes);
  /// Posts waiting sends and collects finished ones. Returns whether there were any.
  bool progress();
  /// Number of finished sends.
  [[nodiscard]] std::uint64_t done() const { return done_; }
  /// Whether all sends have finished.
  [[nodiscard]] bool idle() const { return done_ == filled_; }

 private:
  void post();

  Net& net_;
  void* comm_;
  int tag_;
  std::unique_ptr<Staging> staging_;
  std::vector<void*> requests_;     ///< by slot
  std::vector<std::size_t> sizes_;  ///< by slot
  // Message counts: done <= posted <= filled.
  std::uint64_t filled_ = 0;
  std::uint64_t posted_ = 0;
  std::uint64_t done_ = 0;
};

/// Receives messages in order. Closes its comm at the end.
class ReceiveLink {
 public:
  ReceiveLink(Net& net, void* comm, int tag, const SlotOptions& options);
  ReceiveLink(const ReceiveLink&) = delete;
  ReceiveLink& operator=(const ReceiveLink&) = delete;
  ~ReceiveLink();

  /// Announces this number of further messages, so that receives are posted for them.
  void expect(std::uint64_t messages) { expected_ += messages; }
  /// The oldest message that has arrived and is not released; no value: there is none. An empty message has data too.
  [[nodiscard]] std::optional<std::span<const std::byte>> front() const;
  void release() { ++released_; }
  /// Posts receives ahead and collects arrived messages. Returns whether there were any.
  bool progress();

 private:
  Net& net_;
  void* comm_;
  int tag_;
  std::unique_ptr<Staging> staging_;
  std::vector<void*> requests_;     ///< by slot
  std::vector<std::size_t> sizes_;  ///< by slot
  // Message counts: released <= arrived <= posted <= expected.
  std::uint64_t expected_ = 0;
  std::uint64_t posted_ = 0;
  std::uint64_t arrived_ = 0;
  std::uint64_t released_ = 0;
};

}  // namespace paralet::driver
