// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <set>
#include <vector>

#include "memory_handles.hpp"

namespace paralet::plugin {
namespace {

TEST_CASE("memory contains ranges up to its last byte") {
  std::array<std::byte, 64> bytes{};
  const Memory memory{.device = nullptr, .base = bytes.data(), .length = bytes.size(), .rkey = 1};
  CHECK(memory.holds(bytes.data(), 64));
  CHECK(memory.holds(bytes.data() + 63, 1));
  CHECK(memory.holds(nullptr, 0));
  CHECK_FALSE(memory.holds(bytes.data() + 63, 2));
  CHECK_FALSE(memory.holds(bytes.data() - 1, 1));
  CHECK_FALSE(memory.holds(bytes.data(), SIZE_MAX));
}

TEST_CASE("a handle names its region until it is removed, also when its slot is used again") {
  MemoryHandles handles;
  void* first = handles.add({.rkey = 1});
  REQUIRE(handles.find(first) != nullptr);
  CHECK(handles.find(first)->rkey == 1);
  CHECK(handles.remove(first)->rkey == 1);
  CHECK(handles.find(first) == nullptr);
  CHECK_FALSE(handles.remove(first).has_value());
  void* second = handles.add({.rkey = 2});
  CHECK(second != first);
  CHECK(handles.find(first) == nullptr);
  CHECK(handles.find(second)->rkey == 2);
}

TEST_CASE("a pointer that is not a handle finds no region and is not read") {
  MemoryHandles handles;
  handles.add({.rkey = 1});
  int variable = 0;
  CHECK(handles.find(nullptr) == nullptr);
  CHECK(handles.find(&variable) == nullptr);
  for (const std::uintptr_t number : {~std::uintptr_t{0}, std::uintptr_t{1} << 32 | 5000}) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): NCCL's type for a handle is a pointer
    CHECK(handles.find(reinterpret_cast<void*>(number)) == nullptr);
  }
  CHECK_FALSE(handles.remove(&variable).has_value());
}

TEST_CASE("thousands of handles stay distinct") {
  MemoryHandles handles;
  std::vector<void*> all;
  for (std::uint32_t i = 0; i < 5000; ++i) all.push_back(handles.add({.rkey = i}));
  CHECK(std::set(all.begin(), all.end()).size() == all.size());
  for (std::uint32_t i = 0; i < all.size(); ++i) REQUIRE(handles.find(all[i])->rkey == i);
}

}  // namespace
}  // namespace paralet::plugin
