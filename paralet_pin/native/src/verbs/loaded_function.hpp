// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace paralet::pin {

/// The function `name` of the next library after this one in the order of global symbols, else of the first loaded
/// library that has one, wherever it was loaded: programs and their plugins also load libraries with RTLD_LOCAL. That
/// library then stays loaded. Nothing is loaded for it. nullptr: no loaded library has it.
void* loaded_function(const char* name);

}  // namespace paralet::pin
