// SPDX-License-Identifier: Apache-2.0
// Values as people write them: numbers with units, lists, lines of files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace paralet::settings {

// All parsers throw OptionNotAllowed, without details, when the text is no such value or is out of range. The
// caller knows what is allowed and says so.
std::uint64_t parse_integer(std::string_view text, std::uint64_t least, std::uint64_t most);
/// "65536", "64KiB", "1.5 MiB", "2GiB"
std::uint64_t parse_bytes(std::string_view text, std::uint64_t least, std::uint64_t most);
/// "100Gbit/s", "25000 Mbit/s", "1e9": bits per second
double parse_rate(std::string_view text, double least, double most);
/// "10s", "67 ms", "50us", "0": seconds
double parse_seconds(std::string_view text, double least, double most);
/// A number without a unit.
double parse_number(std::string_view text, double least, double most);
[[noreturn]] void not_allowed();

std::string_view trim(std::string_view text);
/// The parts between separators, trimmed. Empty parts are left out.
std::vector<std::string> split(std::string_view text, std::string_view separators);

struct Line {
  std::string where;  ///< "FILE:LINE: "; empty for a value that is not from a file
  std::string text;
};
/// The lines of a file, trimmed, without comments (from #) and blank lines. Throws SettingsError.
std::vector<Line> read_lines(const std::string& path);

}  // namespace paralet::settings
