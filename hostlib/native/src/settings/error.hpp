// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

namespace paralet::settings {

/// A user's mistake in a parameter: one sentence for the user.
struct SettingsError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

[[noreturn]] inline void refuse(const std::string& sentence) { throw SettingsError(sentence); }

}  // namespace paralet::settings
