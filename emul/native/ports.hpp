// SPDX-License-Identifier: Apache-2.0
// The interfaces whose packets are delayed, each with the tap by which the packets come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "delay_queue.hpp"

namespace paralet::link_delay {

// A file descriptor that is closed at the end of its scope.
class Descriptor {
 public:
  explicit Descriptor(int value = -1) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(other.value_) { other.value_ = -1; }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(Descriptor&&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor();

  [[nodiscard]] int get() const { return value_; }

 private:
  int value_;
};

// One delayed interface. The tap has no offloads, so the kernel computes checksums and cuts segments before it hands
// over a packet; it exists as long as this object. Packets are sent with a mark (SO_MARK), by which the rules that led
// them to the tap let them pass. Throws std::system_error when the kernel refuses the tap or the socket.
class Port {
 public:
  Port(std::string interface, const std::string& tap, uint32_t mark);

  [[nodiscard]] const std::string& interface() const { return interface_; }
  [[nodiscard]] int tap() const { return tap_.get(); }

  // The next frame of the tap, in `room`; empty when there is none.
  std::span<const std::byte> receive(std::span<std::byte> room) const;

  // Whether the kernel took the frame. A link that is down takes none.
  bool send(std::span<const std::byte> frame) const;

  Delay delay;
  uint64_t sent = 0;
  uint64_t late = 0;
  uint64_t dropped = 0;  // for want of memory, or not taken

 private:
  std::string interface_;
  Descriptor tap_;
  Descriptor socket_;
};

}  // namespace paralet::link_delay
