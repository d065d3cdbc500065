// SPDX-License-Identifier: Apache-2.0
#include "base/signal.hpp"

namespace paralet {

Signal& completion_signal() {
  // Never destroyed: the progress thread of a device that was not closed may outlive static destructors.
  static auto& signal = *new Signal;  // NOLINT(cppcoreguidelines-owning-memory)
  return signal;
}

}  // namespace paralet
