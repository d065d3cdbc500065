// SPDX-License-Identifier: Apache-2.0
#include "patch.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>

#ifndef __x86_64__
#error "The CPU device writes jumps of x86-64 only"
#endif

namespace paralet::cpu_device {

namespace {

std::size_t page_bytes() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

void protect(std::byte* from, std::size_t bytes, int protection) {
  if (::mprotect(from, bytes, protection) != 0) {
    throw std::runtime_error(std::string("the memory of a loaded library cannot be changed: ") + std::strerror(errno));
  }
}

template <typename T>
std::byte* put(std::byte* at, const T& value) {
  std::memcpy(at, &value, sizeof(value));
  return at + sizeof(value);
}

std::byte* put_bytes(std::byte* at, std::initializer_list<unsigned char> bytes) {
  for (const unsigned char byte : bytes) *at++ = std::byte{byte};
  return at;
}

std::byte* put_jump(std::byte* at, const void* to) {
  at = put_bytes(at, {0x48, 0xb8});  // movabs rax, to
  at = put(at, to);
  return put_bytes(at, {0xff, 0xe0});  // jmp rax
}

}  // namespace

void replace(const std::vector<Replacement>& replacements) {
  if (replacements.empty()) return;
  const auto [first, last] = std::minmax_element(
      replacements.begin(), replacements.end(), [](const auto& a, const auto& b) { return std::less<>()(a.at, b.at); });
  // One range of pages for all: the CUDA runtime lies in one piece, among functions that nobody calls meanwhile.
  std::byte* const from = first->at - reinterpret_cast<std::uintptr_t>(first->at) % page_bytes();
  const auto bytes = static_cast<std::size_t>(last->at + jump_bytes - from);
  protect(from, bytes, PROT_READ | PROT_WRITE);
  for (const auto& each : replacements) put_jump(each.at, each.function);
  protect(from, bytes, PROT_READ | PROT_EXEC);
}

std::vector<const void*> bind(int (*target)(const char*), const std::vector<std::string>& arguments) {
  if (arguments.empty()) return {};
  constexpr std::size_t code_bytes = 32;
  std::size_t text_bytes = 0;
  for (const auto& argument : arguments) text_bytes += argument.size() + 1;
  const std::size_t bytes = arguments.size() * code_bytes + text_bytes;
  void* start = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) throw std::runtime_error("there is no memory for the CPU device's functions");
  auto* code = static_cast<std::byte*>(start);
  auto* text = code + arguments.size() * code_bytes;
  std::vector<const void*> functions;
  for (const auto& argument : arguments) {
    std::memcpy(text, argument.c_str(), argument.size() + 1);
    std::byte* at = put_bytes(code, {0x48, 0xbf});  // movabs rdi, text
    at = put(at, text);
    put_jump(at, reinterpret_cast<const void*>(target));
    functions.push_back(code);
    code += code_bytes;
    text += argument.size() + 1;
  }
  protect(static_cast<std::byte*>(start), bytes, PROT_READ | PROT_EXEC);
  return functions;
}

}  // namespace paralet::cpu_device
