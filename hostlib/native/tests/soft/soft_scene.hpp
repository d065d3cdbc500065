// SPDX-License-Identifier: Apache-2.0
// Addresses and options of soft back ends that a test's thread drives over loopback.
#pragma once

#include <cstdint>

#include "soft/soft_backend.hpp"

namespace paralet::test {

inline constexpr std::uint32_t kOurAddress = 0x7F000001;
inline constexpr std::uint32_t kTheirAddress = 0x7F000002;
inline constexpr std::uint32_t kThird = 0x7F000003;
inline constexpr std::uint32_t kPathMtu = 256;

inline SoftOptions soft_options(std::uint32_t address) {
  SoftOptions out;
  out.address = address;
  out.congestion.initial_window = 1;  // the second packet waits for the acknowledgement of the first
  return out;
}

}  // namespace paralet::test
