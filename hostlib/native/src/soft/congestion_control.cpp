// SPDX-License-Identifier: Apache-2.0
#include "soft/congestion_control.hpp"

#include <algorithm>
#include <array>

#include "soft/delay_control.hpp"
#include "soft/fixed_window.hpp"

namespace paralet {
namespace {

template <typename Law>
std::unique_ptr<CongestionControl> make(const CongestionOptions& options, const RoundTrip& round_trip,
                                        std::uint64_t seed) {
  return std::make_unique<Law>(options, round_trip, seed);
}

struct Entry {
  const char* name;
  std::unique_ptr<CongestionControl> (*make)(const CongestionOptions&, const RoundTrip&, std::uint64_t);
};

constexpr std::array kLaws = {Entry{"delay", make<DelayControl>}, Entry{"fixed_window", make<FixedWindow>}};

}  // namespace

const std::vector<std::string>& congestion_laws() {
  static const auto& names = *[] {  // NOLINT(cppcoreguidelines-owning-memory): lives as long as the process
    auto* out = new std::vector<std::string>;
    for (const Entry& law : kLaws) out->emplace_back(law.name);
    return out;
  }();
  return names;
}

std::unique_ptr<CongestionControl> make_congestion_control(const CongestionOptions& options,
                                                           const RoundTrip& round_trip, std::uint64_t seed) {
  const auto* const found = std::ranges::find(kLaws, options.law, &Entry::name);
  return (found == kLaws.end() ? kLaws.front() : *found).make(options, round_trip, seed);
}

}  // namespace paralet
