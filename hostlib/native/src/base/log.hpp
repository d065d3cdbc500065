// SPDX-License-Identifier: Apache-2.0
// Messages for the user that belong to no request.
#pragma once

#include <cstdio>
#include <functional>
#include <string>

#include "base/printable.hpp"

namespace paralet {

/// Takes one sentence. Called from any thread, also with locks held: it must not call back into the engine.
using Log = std::function<void(const std::string&)>;

inline void log_to_standard_error(const std::string& sentence) {
  std::fprintf(stderr, "paralet: %s\n", printable(sentence).c_str());
}

}  // namespace paralet
