// SPDX-License-Identifier: Apache-2.0
#include "backend/backend.hpp"

#include "base/random.hpp"

namespace paralet {

std::uint32_t random_qpn(const QpnShare& share) {
  constexpr std::uint32_t kMost = 0xFFFFFF;
  for (;;) {
    const std::uint32_t any = random_u32() & kMost;
    const std::uint32_t qpn = any - any % share.shards + share.shard;
    if (qpn <= kMost) return qpn;
  }
}

const char* to_string(PortMethod method) {
  switch (method) {
    case PortMethod::kSocket:
      return "socket";
    case PortMethod::kFlowLabel:
      return "flow_label";
    case PortMethod::kModifyQp:
      return "modify_qp";
    case PortMethod::kNone:
      return "none";
  }
  return "unknown";
}

}  // namespace paralet
