// SPDX-License-Identifier: Apache-2.0
// Puts functions in place of others in memory: the first bytes of a function become a jump.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace paralet::cpu_device {

// Length of a jump, the least length of a function that can be replaced.
inline constexpr std::size_t jump_bytes = 12;

struct Replacement {
  std::byte* at;         // the function that goes, in memory that is mapped to be executed
  const void* function;  // the one that is called instead
};

// Writes all jumps. The pages from the first function to the last are writable while they are written, executable
// before and after, and never both; nobody, this code included, may execute anything in them meanwhile. The file that
// the memory was mapped from does not change. Throws std::runtime_error with a sentence.
void replace(const std::vector<Replacement>& replacements);

// Functions made at run time, which call `target(argument)` and return its result, whatever they are called with.
// They live as long as the process.
std::vector<const void*> bind(int (*target)(const char*), const std::vector<std::string>& arguments);

}  // namespace paralet::cpu_device
