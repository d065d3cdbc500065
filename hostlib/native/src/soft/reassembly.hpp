// SPDX-License-Identifier: Apache-2.0
// Selective repeat, receiving side: request packets that arrived before one that is missing. They wait here until the
// missing one comes and are then taken in PSN order, so that messages complete exactly as if no packet had been lost.
// The payload of a packet of the WRITE in progress waits where it belongs, others are copied.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "wire/wire.hpp"

namespace paralet {

/// Bytes that waiting packets may take: those of a device, and of these the ones of a peer, so that no peer takes the
/// memory of all others. Packets beyond it are dropped, as if the network had lost them.
struct ReassemblyMemory {
  std::size_t left = 0;
  ReassemblyMemory* whole = nullptr;  ///< of which this is a part
  /// False, and nothing is taken, when not enough is left.
  bool take(std::size_t bytes);
  void give_back(std::size_t bytes);
};
inline constexpr std::size_t kDeviceReassemblyBytes = std::size_t{64} << 20;
inline constexpr std::size_t kPeerReassemblyBytes = std::size_t{16} << 20;

class Reassembly {
 public:
  static constexpr std::uint32_t kWindow = 1024;  ///< PSNs behind the missing one

  /// Without memory nothing is kept: go-back-N.
  explicit Reassembly(ReassemblyMemory* memory) : memory_(memory) {}
  ~Reassembly() { clear(); }
  Reassembly(const Reassembly&) = delete;
  Reassembly& operator=(const Reassembly&) = delete;

  [[nodiscard]] bool enabled() const { return memory_ != nullptr; }
  [[nodiscard]] bool empty() const { return table_ == nullptr; }
  struct Kept {
    wire::Packet packet;  ///< its payload is in its place, or in `payload`
    std::size_t bytes = 0;
    std::unique_ptr<std::byte[]> payload;
  };

  /// Keeps the packet that comes `distance` PSNs after the missing one, at least 1. Its payload is copied to `place`,
  /// which has room for it, or into memory of this object where `place` is nullptr. Ignores a packet that is kept
  /// already, is too far away, or finds no memory.
  void keep(std::uint32_t distance, const wire::Packet& packet, std::byte* place = nullptr);
  /// Removes and returns the packet with this PSN, the missing one's, if it is here.
  std::unique_ptr<Kept> take(std::uint32_t psn);
  void clear();
  /// Bit i, counted from the most significant bit of the first byte: the packet 1 + i PSNs after the missing one,
  /// which has `psn`, is here. A multiple of four bytes, without zeros at the end. Valid until the next call.
  std::span<const std::byte> bitmap(std::uint32_t psn);

 private:
  /// Exists while packets wait, so that an idle QP is small.
  struct Table {
    std::array<std::unique_ptr<Kept>, kWindow> slots;  ///< by PSN modulo kWindow
    std::array<std::byte, kWindow / 8> bitmap;
    std::size_t count = 0;
    std::uint32_t highest = 0;  ///< of the PSNs that were kept
  };
  void release_table();
  [[nodiscard]] std::unique_ptr<Kept>& slot(std::uint32_t psn) { return table_->slots[psn % kWindow]; }

  ReassemblyMemory* memory_;
  std::unique_ptr<Table> table_;
};

}  // namespace paralet
