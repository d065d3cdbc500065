// SPDX-License-Identifier: Apache-2.0
#include "soft/reassembly.hpp"

#include <algorithm>
#include <cstring>

namespace paralet {

bool ReassemblyMemory::take(std::size_t bytes) {
  if (bytes > left || (whole != nullptr && !whole->take(bytes))) return false;
  left -= bytes;
  return true;
}

void ReassemblyMemory::give_back(std::size_t bytes) {
  left += bytes;
  if (whole != nullptr) whole->give_back(bytes);
}

void Reassembly::keep(std::uint32_t distance, const wire::Packet& packet, std::byte* place) {
  if (!enabled() || distance == 0 || distance >= kWindow) return;
  if (table_ && slot(packet.psn)) return;
  const std::size_t payload = packet.payload.size();
  const std::size_t bytes = sizeof(Kept) + (place == nullptr ? payload : 0);
  if (!memory_->take(bytes + (table_ ? 0 : sizeof(Table)))) return;
  if (!table_) table_ = std::make_unique<Table>();
  auto kept = std::make_unique<Kept>(Kept{.packet = packet, .bytes = bytes, .payload = {}});
  if (place == nullptr && payload > 0) {
    kept->payload = std::make_unique_for_overwrite<std::byte[]>(payload);
    place = kept->payload.get();
  }
  if (payload > 0) std::memcpy(place, packet.payload.data(), payload);
  kept->packet.payload = {place, payload};
  slot(packet.psn) = std::move(kept);
  const std::uint32_t missing = packet.psn - distance;
  if (table_->count == 0 || distance > ((table_->highest - missing) & wire::kPsnMask)) table_->highest = packet.psn;
  ++table_->count;
}

std::unique_ptr<Reassembly::Kept> Reassembly::take(std::uint32_t psn) {
  if (!table_ || !slot(psn)) return nullptr;
  auto taken = std::move(slot(psn));
  memory_->give_back(taken->bytes);
  if (--table_->count == 0) release_table();
  return taken;
}

void Reassembly::clear() {
  if (!table_) return;
  for (const auto& slot : table_->slots) {
    if (slot) memory_->give_back(slot->bytes);
  }
  release_table();
}

void Reassembly::release_table() {
  table_.reset();
  memory_->give_back(sizeof(Table));
}

std::span<const std::byte> Reassembly::bitmap(std::uint32_t psn) {
  if (!table_) return {};
  const std::uint32_t bits = (table_->highest - psn) & wire::kPsnMask;
  const std::size_t bytes = (bits + 31) / 32 * 4;
  std::fill_n(table_->bitmap.begin(), bytes, std::byte{0});
  for (std::uint32_t i = 0; i < bits; ++i) {
    if (slot(psn + 1 + i)) table_->bitmap[i / 8] |= std::byte{0x80} >> (i % 8);
  }
  return std::span(table_->bitmap).first(bytes);
}

}  // namespace paralet
