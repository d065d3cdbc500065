// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Before a loop: no iteration depends on another.
#if defined(__clang__)
#define PARALET_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define PARALET_INDEPENDENT _Pragma("GCC ivdep")
#endif
