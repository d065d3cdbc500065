// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <fstream>
#include <string>

#include "patch.hpp"

namespace paralet::cpu_device {
namespace {

// A function on a page of its own, which no other code shares: it returns twice its argument.
class OwnPage {
 public:
  OwnPage() {
    constexpr unsigned char code[] = {0x89, 0xf8, 0x01, 0xc0, 0xc3, 0,
                                      0,    0,    0,    0,    0,    0};  // mov eax, edi; add eax, eax; ret
    static_assert(sizeof(code) >= jump_bytes);
    start_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    std::memcpy(start_, code, sizeof(code));
    ::mprotect(start_, bytes, PROT_READ | PROT_EXEC);
  }
  ~OwnPage() { ::munmap(start_, bytes); }
  OwnPage(const OwnPage&) = delete;
  OwnPage& operator=(const OwnPage&) = delete;

  std::byte* at() const { return static_cast<std::byte*>(start_); }
  int call(int value) const { return reinterpret_cast<int (*)(int)>(start_)(value); }

 private:
  static constexpr std::size_t bytes = 4096;
  void* start_ = nullptr;
};

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
  const OwnPage original;
  CHECK(original.call(3) == 6);
  replace({{.at = original.at(), .function = reinterpret_cast<const void*>(instead)}});
  CHECK(original.call(3) == -3);
  CHECK(protection(original.at()) == "r-xp");
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
