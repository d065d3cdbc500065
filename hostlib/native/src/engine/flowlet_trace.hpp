// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.hpp"

namespace paralet {

/// When each flowlet of one message left or arrived, and on which lane, for profilers. The engine appends while it
/// holds the progress lock; one other thread may read meanwhile.
class FlowletTrace {
 public:
  struct Flowlet {
    unsigned lane = 0;
    std::uint32_t qpn = 0;
    std::uint16_t port = 0;  ///< UDP source port of the sender; 0 on the receive side
    std::uint32_t bytes = 0;
    Nanos began = 0;              ///< posted, or arrived
    std::atomic<Nanos> ended{0};  ///< acknowledged, or arrived; 0: not yet
  };

  // The engine.
  /// Makes room for a message of `count` flowlets.
  void expect(std::uint32_t count) { flowlets_ = std::vector<Flowlet>(count); }
  [[nodiscard]] bool expected() const { return !flowlets_.empty(); }
  void begin(unsigned lane, std::uint32_t qpn, std::uint16_t port, std::uint32_t bytes, Nanos now) {
    const std::size_t index = count_.load(std::memory_order_relaxed);
    if (index == flowlets_.size()) return;
    Flowlet& added = flowlets_[index];
    added.lane = lane;
    added.qpn = qpn;
    added.port = port;
    added.bytes = bytes;
    added.began = now;
    count_.store(index + 1, std::memory_order_release);
  }
  /// The oldest flowlet on this QP is done: a QP finishes its work in order.
  void end(std::uint32_t qpn, Nanos now) {
    const std::size_t count = count_.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < count; ++i) {
      if (flowlets_[i].qpn != qpn || flowlets_[i].ended.load(std::memory_order_relaxed) != 0) continue;
      flowlets_[i].ended.store(now, std::memory_order_release);
      return;
    }
  }

  // The reader.
  [[nodiscard]] std::size_t size() const { return count_.load(std::memory_order_acquire); }
  [[nodiscard]] const Flowlet& operator[](std::size_t index) const { return flowlets_[index]; }

 private:
  std::vector<Flowlet> flowlets_;  ///< a reader looks at none before `count_` says that it is there
  std::atomic<std::size_t> count_{0};
};

}  // namespace paralet
