// SPDX-License-Identifier: Apache-2.0
#include "backend/backend.hpp"

namespace paralet {

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
