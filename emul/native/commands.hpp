// SPDX-License-Identifier: Apache-2.0
// The commands that paralet-link-delay reads from its standard input, one per line.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "delay_queue.hpp"

namespace paralet::link_delay {

// "set INTERFACE TAP BASE_NS LATE_SHARE LATE_BY_NS": from now on what enters TAP leaves by INTERFACE after this delay.
// TAP is made for the first command that names INTERFACE.
struct Set {
  std::string interface;
  std::string tap;
  Delay delay;
};

// "counts": answered by a line with the interfaces' names, each followed by its numbers of packets sent, late, dropped.
struct Counts {};

// Throws std::invalid_argument, whose text says what is wrong, for any other line.
std::variant<Set, Counts> parse(std::string_view line);

}  // namespace paralet::link_delay
