// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace paralet::settings {

/// Rail and plane of a device, as in NCCL's properties: undefined is NCCL_NET_ID_UNDEF.
struct RailPlane {
  std::int16_t rail = -1;
  std::int16_t plane = -1;
  bool operator==(const RailPlane&) const = default;
};

/// The user's rails and planes. Only NCCL's search of rings and trees has a use for them.
struct Rails {
  bool by_position = true;                 ///< number rails by PCI address; else only the named ones
  std::map<std::string, RailPlane> named;  ///< by interface
};

}  // namespace paralet::settings
