// SPDX-License-Identifier: Apache-2.0
#include "commands.hpp"

#include <sstream>
#include <stdexcept>

namespace paralet::link_delay {

std::variant<Set, Counts> parse(std::string_view line) {
  std::istringstream words{std::string(line)};
  std::string name;
  words >> name;
  if (name == "counts" && !(words >> name)) {
    return Counts{};
  }
  Set set;
  Delay& delay = set.delay;
  std::string rest;
  if (name != "set" || !(words >> set.interface >> set.tap >> delay.base_ns >> delay.late_share >> delay.late_by_ns) ||
      words >> rest) {
    throw std::invalid_argument("no command: " + std::string(line));
  }
  if (delay.base_ns < 0 || delay.late_by_ns < 0 || !(delay.late_share >= 0 && delay.late_share <= 1)) {
    throw std::invalid_argument("no delay: " + std::string(line));
  }
  return set;
}

}  // namespace paralet::link_delay
