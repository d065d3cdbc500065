// SPDX-License-Identifier: Apache-2.0
#include "settings/values.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <span>
#include <sstream>

#include "engine/options.hpp"
#include "settings/error.hpp"

namespace paralet::settings {
namespace {

constexpr std::size_t kMaxFileBytes = 1 << 20;

struct Unit {
  std::string_view name;
  double factor;
};

/// A number and one of the units, with or without a blank between them.
double quantity(std::string_view text, std::span<const Unit> units, double least, double most) {
  text = trim(text);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) not_allowed();
  const std::string_view name = trim(text.substr(static_cast<std::size_t>(end - text.data())));
  const auto unit = std::ranges::find(units, name, &Unit::name);
  if (unit == units.end()) not_allowed();
  value *= unit->factor;
  if (!(value >= least && value <= most)) not_allowed();  // also rejects NaN
  return value;
}

std::string read_file(const std::string& path) {
  const auto refuse_file = [&path](const char* why) { refuse("the file " + path + why); };
  std::ifstream in(path, std::ios::binary);
  if (!in) refuse_file(" cannot be read");
  std::string text(kMaxFileBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) refuse_file(" cannot be read");
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > kMaxFileBytes) refuse_file(" is longer than 1 MiB");
  return text;
}

}  // namespace

void not_allowed() { throw OptionNotAllowed(); }

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

std::vector<std::string> split(std::string_view text, std::string_view separators) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of(separators), text.size());
    if (const auto part = trim(text.substr(0, end)); !part.empty()) out.emplace_back(part);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::uint64_t parse_integer(std::string_view text, std::uint64_t least, std::uint64_t most) {
  text = trim(text);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) not_allowed();
  return value;
}

std::uint64_t parse_bytes(std::string_view text, std::uint64_t least, std::uint64_t most) {
  static constexpr std::array<Unit, 4> kUnits = {{{"", 1}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}}};
  const double value = quantity(text, kUnits, static_cast<double>(least), static_cast<double>(most));
  if (value != std::floor(value)) not_allowed();
  return static_cast<std::uint64_t>(value);
}

double parse_rate(std::string_view text, double least, double most) {
  static constexpr std::array<Unit, 5> kUnits = {
      {{"", 1}, {"bit/s", 1}, {"kbit/s", 1e3}, {"Mbit/s", 1e6}, {"Gbit/s", 1e9}}};
  return quantity(text, kUnits, least, most);
}

double parse_seconds(std::string_view text, double least, double most) {
  static constexpr std::array<Unit, 3> kUnits = {{{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}}};
  if (trim(text) == "0" && least <= 0) return 0;
  return quantity(text, kUnits, least, most);
}

double parse_number(std::string_view text, double least, double most) {
  static constexpr std::array<Unit, 1> kUnits = {{{"", 1}}};
  return quantity(text, kUnits, least, most);
}

std::vector<Line> read_lines(const std::string& path) {
  std::istringstream in(read_file(path));
  std::vector<Line> out;
  std::size_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const std::string_view text = trim(std::string_view(line).substr(0, line.find('#')));
    if (!text.empty()) out.push_back({path + ":" + std::to_string(number) + ": ", std::string(text)});
  }
  return out;
}

}  // namespace paralet::settings
