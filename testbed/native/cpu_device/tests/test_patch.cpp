// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <fstream>
#include <string>

#include "patch.hpp"

namespace paralet::cpu_device {
namespace {

__attribute__((noinline)) int original(int value) {
  // Long enough to hold a jump, and not to be worked out by the compiler.
  volatile int result = value;
  for (int i = 0; i < value; ++i) result = result + i;
  return result;
}

int instead(int value) { return -value; }

int length(const char* text) { return static_cast<int>(std::string(text).size()); }

// Protection of the mapping that holds an address, such as "r-xp".
std::string protection(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::uintptr_t from = std::stoull(line, nullptr, 16);
    const std::uintptr_t to = std::stoull(line.substr(line.find('-') + 1), nullptr, 16);
    if (from <= wanted && wanted < to) return line.substr(line.find(' ') + 1, 4);
  }
  return {};
}

TEST_CASE("a replaced function calls the other, and its page is not writable") {
  int (*volatile call)(int) = original;
  CHECK(call(3) == 6);
  replace({{.at = reinterpret_cast<std::byte*>(original), .function = reinterpret_cast<const void*>(instead)}});
  CHECK(call(3) == -3);
  CHECK(protection(reinterpret_cast<const void*>(original)) == "r-xp");
}

TEST_CASE("a bound function passes its own text on") {
  const auto functions = bind(length, {"four", "", "eleven more"});
  REQUIRE(functions.size() == 3);
  const auto call = [&](std::size_t i) { return reinterpret_cast<int (*)(int)>(const_cast<void*>(functions[i]))(99); };
  CHECK(call(0) == 4);
  CHECK(call(1) == 0);
  CHECK(call(2) == 11);
  CHECK(protection(functions[0]) == "r-xp");
}

}  // namespace
}  // namespace paralet::cpu_device
