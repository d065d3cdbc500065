// SPDX-License-Identifier: Apache-2.0
#include "verbs/loaded_function.hpp"

#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <string>
#include <vector>

namespace paralet::pin {
namespace {

/// Where the library of this function is in memory.
void* base_of(const void* function) {
  Dl_info found{};
  return ::dladdr(function, &found) != 0 ? found.dli_fbase : nullptr;
}

std::vector<std::string> loaded_libraries() {
  std::vector<std::string> names;
  const auto add = [](dl_phdr_info* library, std::size_t /*size*/, void* out) {
    // The program itself has no name. It can only use what the libraries have.
    if (*library->dlpi_name != '\0') static_cast<std::vector<std::string>*>(out)->emplace_back(library->dlpi_name);
    return 0;
  };
  ::dl_iterate_phdr(add, &names);
  return names;
}

}  // namespace

void* loaded_function(const char* name) {
  if (void* next = ::dlsym(RTLD_NEXT, name); next != nullptr) return next;
  const void* own = base_of(reinterpret_cast<void*>(&loaded_function));
  for (const std::string& library : loaded_libraries()) {
    void* handle = ::dlopen(library.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (handle == nullptr) continue;
    void* function = ::dlsym(handle, name);
    if (function != nullptr && base_of(function) != own) return function;  // not closed: the function is in use
    ::dlclose(handle);
  }
  return nullptr;
}

}  // namespace paralet::pin
