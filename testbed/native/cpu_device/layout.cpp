// SPDX-License-Identifier: Apache-2.0
#include "layout.hpp"

#include <array>

namespace paralet::cpu_device {

namespace {

constexpr auto members = std::to_array<Field Layout::*>({
#define PARALET_LAYOUT_POINTER(generation, name, path) &Layout::name,
    PARALET_LAYOUT(PARALET_LAYOUT_POINTER)
#undef PARALET_LAYOUT_POINTER
});

}  // namespace

const char* layout_fields() {
#define PARALET_LAYOUT_LINE(generation, name, path) #generation " " #name " " path "\n"
  return PARALET_LAYOUT(PARALET_LAYOUT_LINE);
#undef PARALET_LAYOUT_LINE
}

bool decode_layout(std::uint32_t generation, std::span<const std::uint32_t> values, Layout& layout) {
  const bool known = generation == static_cast<std::uint32_t>(Generation::elements) ||
                     generation == static_cast<std::uint32_t>(Generation::batches);
  if (!known || values.size() != 2 * members.size()) return false;
  layout.generation = static_cast<Generation>(generation);
  for (std::size_t i = 0; i < members.size(); ++i) {
    layout.*members[i] = Field{.first_bit = values[2 * i], .bits = values[2 * i + 1]};
  }
  return true;
}

}  // namespace paralet::cpu_device
