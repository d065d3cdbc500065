// SPDX-License-Identifier: Apache-2.0
// Makes text of unknown origin safe to show, as netmodel/printable.py does for Python.
#pragma once

#include <string>
#include <string_view>

namespace paralet {

/// One line of ASCII without anything that a terminal or a log would act upon: every other byte becomes an escape, such
/// as \x1b or \n. Backslashes stay, so text that passes twice does not change.
inline std::string printable(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string line;
  line.reserve(text.size());
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if (byte >= ' ' && byte <= '~') {
      line += letter;
    } else if (letter == '\n') {
      line += "\\n";
    } else {
      line += {'\\', 'x', kDigits[byte >> 4U], kDigits[byte & 15U]};
    }
  }
  return line;
}

}  // namespace paralet
