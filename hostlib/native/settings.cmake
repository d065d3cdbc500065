# SPDX-License-Identifier: Apache-2.0
# How all native code of the project is built, whether from the root or from hostlib/native alone.
option(PARALET_PYTHON "Build the Python extension hostlib._engine" OFF)
option(PARALET_TESTS "Build the C++ unit tests" OFF)
option(PARALET_FUZZ "Build the fuzzers (Clang only)" OFF)
set(PARALET_SANITIZE "" CACHE STRING "Sanitizers, as for -fsanitize=: address,undefined or thread")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O3 -g -DNDEBUG")
