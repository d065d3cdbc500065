// SPDX-License-Identifier: Apache-2.0
// Prints the table of parameters as JSON. Run by the build.
#include <iostream>
#include <string_view>

#include "settings/parameters.hpp"

namespace {

/// The texts of the table are plain ASCII, so only quotes and backslashes need an escape.
void print_string(std::string_view text) {
  std::cout << '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') std::cout << '\\';
    std::cout << c;
  }
  std::cout << '"';
}

}  // namespace

int main() {
  const char* separator = "[\n";
  for (const auto& parameter : paralet::settings::parameters()) {
    std::cout << separator << "  {\"name\": ";
    print_string(parameter.name);
    std::cout << ", \"values\": ";
    print_string(parameter.values);
    std::cout << ", \"default\": ";
    print_string(parameter.standard);
    std::cout << ", \"meaning\": ";
    print_string(parameter.meaning);
    std::cout << "}";
    separator = ",\n";
  }
  std::cout << "\n]\n" << std::flush;
  return std::cout.good() ? 0 : 1;
}
