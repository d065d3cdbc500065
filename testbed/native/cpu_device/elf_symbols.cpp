// SPDX-License-Identifier: Apache-2.0
#include "elf_symbols.hpp"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string_view>

namespace paralet::cpu_device {

namespace {

// A file mapped for reading.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) throw std::runtime_error(path + " cannot be opened: " + std::strerror(errno));
    struct stat status {};
    if (::fstat(file, &status) == 0 && status.st_size > 0) {
      bytes_ = static_cast<std::size_t>(status.st_size);
      start_ = ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file, 0);
    }
    ::close(file);
    if (start_ == MAP_FAILED) throw std::runtime_error(path + " cannot be mapped into memory");
  }
  ~MappedFile() { ::munmap(start_, bytes_); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // `count` objects of T at `offset`; empty where the file ends before.
  template <typename T>
  std::span<const T> array(std::size_t offset, std::size_t count) const {
    if (offset > bytes_ || count > (bytes_ - offset) / sizeof(T) || offset % alignof(T) != 0) return {};
    return {reinterpret_cast<const T*>(static_cast<const std::byte*>(start_) + offset), count};
  }

 private:
  void* start_ = MAP_FAILED;
  std::size_t bytes_ = 0;
};

std::string_view text_at(std::span<const char> strings, std::size_t offset) {
  if (offset >= strings.size()) return {};
  return {strings.data() + offset, ::strnlen(strings.data() + offset, strings.size() - offset)};
}

}  // namespace

std::vector<Symbol> read_symbols(const std::string& path) {
  const MappedFile file(path);
  const auto header = file.array<Elf64_Ehdr>(0, 1);
  if (header.empty() || std::memcmp(header[0].e_ident, ELFMAG, SELFMAG) != 0 ||
      header[0].e_ident[EI_CLASS] != ELFCLASS64) {
    throw std::runtime_error(path + " is not a 64-bit ELF file");
  }
  const auto sections = file.array<Elf64_Shdr>(header[0].e_shoff, header[0].e_shnum);
  std::vector<Symbol> symbols;
  for (const auto& section : sections) {
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
    const auto& names = sections[section.sh_link];
    const auto strings = file.array<char>(names.sh_offset, names.sh_size);
    for (const auto& symbol : file.array<Elf64_Sym>(section.sh_offset, section.sh_size / sizeof(Elf64_Sym))) {
      const unsigned type = ELF64_ST_TYPE(symbol.st_info);
      if (symbol.st_shndx == SHN_UNDEF || (type != STT_FUNC && type != STT_OBJECT)) continue;
      symbols.push_back({.name = std::string(text_at(strings, symbol.st_name)),
                         .value = symbol.st_value,
                         .bytes = symbol.st_size,
                         .is_function = type == STT_FUNC});
    }
  }
  if (symbols.empty()) throw std::runtime_error(path + " has no symbol table (.symtab): it has been stripped");
  return symbols;
}

}  // namespace paralet::cpu_device
