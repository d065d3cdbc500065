// SPDX-License-Identifier: Apache-2.0
#include "agent_protocol.hpp"

#include <algorithm>

namespace paralet::pin {

std::string_view view(const Text& text) {
  return {text.data(), static_cast<std::size_t>(std::find(text.begin(), text.end(), '\0') - text.begin())};
}

Text text_of(std::string_view words) {
  Text text{};
  std::copy_n(words.begin(), std::min(words.size(), text.size()), text.begin());
  return text;
}

}  // namespace paralet::pin
