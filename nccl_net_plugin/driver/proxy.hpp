// SPDX-License-Identifier: Apache-2.0
// One direction of a connection as NCCL's proxy drives it: a staging buffer of a few slots, registered once; receives
// posted ahead of the sends; requests tested in turn, oldest first. Nothing blocks.
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
  std::size_t bytes = 512 << 10;  ///< of one slot: the largest message
  unsigned steps = kSteps;        ///< slots: messages under way at most
};

/// The slots of one direction, in one piece of page-aligned memory that is registered with a comm.
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

  /// Where to put the next message; empty while all slots are under way.
  [[nodiscard]] std::span<std::byte> free_slot() const {
    return filled_ - done_ < staging_->steps() ? staging_->slot(filled_) : std::span<std::byte>{};
  }
  /// Sends the first `bytes` of that slot: now, or when the network has room for it.
  void send(std::size_t bytes);
  /// Hands over what still waits and takes back what is done. Whether there was anything.
  bool progress();
  /// Messages that are done.
  [[nodiscard]] std::uint64_t done() const { return done_; }
  /// Whether all are.
  [[nodiscard]] bool idle() const { return done_ == filled_; }

 private:
  void post();

  Net& net_;
  void* comm_;
  int tag_;
  std::unique_ptr<Staging> staging_;
  std::vector<void*> requests_;     ///< by slot
  std::vector<std::size_t> sizes_;  ///< by slot
  // Counted up, done <= posted <= filled.
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

  /// So many more messages will come: receives may be posted for them.
  void expect(std::uint64_t messages) { expected_ += messages; }
  /// The oldest message that has come, until it is released; no value: none has. Data of an empty message is not null.
  [[nodiscard]] std::optional<std::span<const std::byte>> front() const;
  void release() { ++released_; }
  /// Posts receives ahead and takes in what has come. Whether there was anything.
  bool progress();

 private:
  Net& net_;
  void* comm_;
  int tag_;
  std::unique_ptr<Staging> staging_;
  std::vector<void*> requests_;     ///< by slot
  std::vector<std::size_t> sizes_;  ///< by slot
  // Counted up, released <= arrived <= posted <= expected.
  std::uint64_t expected_ = 0;
  std::uint64_t posted_ = 0;
  std::uint64_t arrived_ = 0;
  std::uint64_t released_ = 0;
};

}  // namespace paralet::driver
