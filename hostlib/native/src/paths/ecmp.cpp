// SPDX-License-Identifier: Apache-2.0
#include "paths/ecmp.hpp"

#include "wire/wire.hpp"

namespace paralet {
namespace {

std::uint64_t entropy(const std::optional<std::uint64_t>& seed) {
  return seed ? *seed : (static_cast<std::uint64_t>(random_u32()) << 32) | random_u32();
}

std::uint16_t in_range(unsigned n) {
  return static_cast<std::uint16_t>(wire::kFirstEntropyPort + n % wire::kEntropyPorts);
}

}  // namespace

static_assert(wire::kEntropyPorts == 1U << 14 && wire::kFirstEntropyPort % wire::kEntropyPorts == 0);

Ecmp::Ecmp(unsigned lanes, std::optional<std::uint64_t> seed) : random_(entropy(seed)) {
  ports_.reserve(lanes);
  for (unsigned lane = 0; lane < lanes; ++lane) ports_.push_back(draw());
  stride_ = 2 * draw() + 1;
}

std::optional<std::uint16_t> Ecmp::alternative(PeerName /*peer*/, unsigned lane) {
  return ports_[lane] = in_range(ports_[lane] + stride_);
}

std::uint16_t Ecmp::draw() { return in_range(static_cast<unsigned>(random_.below(wire::kEntropyPorts))); }

}  // namespace paralet
