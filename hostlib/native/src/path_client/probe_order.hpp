// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <variant>

#include "path_client/messages.hpp"

namespace paralet::path_client {

/// A destination QPN for probes to a peer whose QPs are not known.
inline constexpr std::uint32_t kSomeQpn = 0x00FFFE;

/// What the service wants probed, with the QPN that probes to its peer carry, since some switches hash it.
struct ProbeOrder {
  std::variant<ProbeAsk, Watch> what;
  std::uint32_t qpn = kSomeQpn;
};

}  // namespace paralet::path_client
