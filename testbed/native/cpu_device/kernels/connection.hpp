// SPDX-License-Identifier: Apache-2.0
// One direction of a connection between two ranks on one channel, as NCCL's transports set it up.
//
// A connection is a ring of 8 slots, counted by steps. The sender fills the slot of its step and raises `tail`; the
// receiver takes the data and raises `head`. Between hosts NCCL's proxy threads stand on the other side of both.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "kernel.hpp"
#include "layout.hpp"

namespace paralet::cpu_device {

constexpr unsigned slots = 8;  // NCCL_STEPS

// The index of a protocol in NCCL's arrays of buffers.
constexpr unsigned ll_buffer = 0;
constexpr unsigned simple_buffer = 2;

// A view of NCCL's ncclConnInfo. The memory belongs to NCCL and outlives the launch.
class Connection {
 public:
  Connection(const Layout& layout, std::byte* connection)
      : layout_(&layout),
        connection_(connection),
        tail_(reinterpret_cast<std::uint64_t*>(read_pointer(connection, layout.conn_tail))),
        head_(reinterpret_cast<std::uint64_t*>(read_pointer(connection, layout.conn_head))),
        fifo_(read_pointer(connection, layout.conn_fifo)),
        step_bytes_(read_unsigned(connection, layout.conn_step_bytes)) {}

  // Steps that the sender has filled, and that the receiver has taken.
  std::uint64_t tail() const { return std::atomic_ref(*tail_).load(std::memory_order_acquire); }
  std::uint64_t head() const { return std::atomic_ref(*head_).load(std::memory_order_acquire); }
  void post_tail(std::uint64_t step) const { std::atomic_ref(*tail_).store(step, std::memory_order_release); }
  void post_head(std::uint64_t step) const { std::atomic_ref(*head_).store(step, std::memory_order_release); }

  // Whether there is a head at all: a connection without one does not limit the sender.
  bool has_head() const { return head_ != nullptr; }

  // The step that the next operation starts with, kept between launches.
  std::uint64_t step() const { return read_unsigned(connection_, layout_->conn_step); }
  void save_step(std::uint64_t step) const {
    std::memcpy(connection_ + layout_->conn_step.offset(), &step, sizeof(step));
  }

  // Where the data of a step lies, for protocol Simple. A proxy may choose the place of each step (offset mode, for
  // buffers shared among connections); valid once the sender has credit, or the receiver data.
  std::byte* simple_data(std::uint64_t step) const {
    std::byte* base = buffer(simple_buffer);
    if (fifo_ != nullptr && read_unsigned(entry(step), layout_->fifo_mode) == offset_mode) {
      return base + read_signed(entry(step), layout_->fifo_offset);
    }
    return base + (step % slots) * step_bytes_;
  }

  std::byte* buffer(unsigned protocol) const {
    const Field buffers = layout_->conn_buffers;
    std::byte* base = nullptr;
    std::memcpy(&base, connection_ + buffers.offset() + protocol * sizeof(base), sizeof(base));
    return base;
  }

  // Tells the sending proxy how much it finds in the slot of a step.
  void post_bytes(std::uint64_t step, std::size_t bytes) const {
    if (fifo_ == nullptr) return;
    auto* size = reinterpret_cast<std::int64_t*>(entry(step) + layout_->fifo_bytes.offset());
    std::atomic_ref(*size).store(static_cast<std::int64_t>(bytes), std::memory_order_release);
  }

 private:
  static constexpr std::uint64_t offset_mode = 1;  // NCCL_MODE_OFFSET

  std::byte* entry(std::uint64_t step) const { return fifo_ + (step % slots) * layout_->fifo.size(); }

  const Layout* layout_;
  std::byte* connection_;
  std::uint64_t* tail_;
  std::uint64_t* head_;
  std::byte* fifo_;
  std::size_t step_bytes_;
};

}  // namespace paralet::cpu_device
