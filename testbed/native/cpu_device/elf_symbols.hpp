// SPDX-License-Identifier: Apache-2.0
// The symbols of a shared library's file, those that the loader does not keep included.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace paralet::cpu_device {

struct Symbol {
  std::string name;
  std::uintptr_t value = 0;  // address less the address that the library is loaded at
  std::size_t bytes = 0;
  bool is_function = false;
};

// The functions and objects that the section .symtab of an ELF file defines. Throws std::runtime_error with a sentence
// where the file cannot be read, is not a 64-bit ELF file, or has been stripped.
std::vector<Symbol> read_symbols(const std::string& path);

}  // namespace paralet::cpu_device
