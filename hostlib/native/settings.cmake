# SPDX-License-Identifier: Apache-2.0
# How all native code of the project is built, whether from the root or from hostlib/native alone.
option(PARALET_PYTHON "Build the Python extensions" OFF)
option(PARALET_TESTS "Build the C++ unit tests" OFF)
option(PARALET_FUZZ "Build the fuzzers (Clang only), and the rest with the sanitizers that they need" OFF)
set(PARALET_SANITIZE "" CACHE STRING "Sanitizers, as for -fsanitize=: address,undefined or thread")
if(PARALET_FUZZ)
  set(PARALET_SANITIZE address,undefined)
endif()

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# Most of the time goes into headers and templates, so up to a batch of sources of a target is compiled as one unit.
# Names in unnamed namespaces must therefore differ within a target. A tree for clang-tidy has this off.
option(CMAKE_UNITY_BUILD "Compile several sources of a target at once" ON)
set(CMAKE_UNITY_BUILD_BATCH_SIZE 20)
if(PARALET_SANITIZE)
  # Sanitized code is run by tests only, so it is compiled quickly. Reports have numbers of lines.
  set(CMAKE_C_FLAGS_RELEASE "-O1 -g1 -DNDEBUG")
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -g1 -DNDEBUG")
  set(quick_optimisation -O0)
else()
  # perf and stack traces have names of functions. Numbers of lines take a fifth of the time to compile: whoever needs them
  # sets CXXFLAGS=-g1 before the tree is made.
  set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
  set(quick_optimisation -O1)
endif()

# Everything that the component `python` installs. setup.py builds this and leaves the tests to scripts/test-native.sh.
if(NOT TARGET paralet_python)
  add_custom_target(paralet_python)
endif()

# For targets and sources off the data path: compiling them quickly matters more than how fast they run.
function(paralet_compile_quickly target)
  target_compile_options(${target} PRIVATE ${quick_optimisation})
endfunction()
function(paralet_compile_sources_quickly)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS -O1)
endfunction()

# Builds LIBRARY, and whatever links it, with the sanitizers of PARALET_SANITIZE, if any.
function(paralet_sanitize library)
  if(PARALET_SANITIZE)
    # Without vptr: it opens a pipe for every type that it meets, and takes a failure to do so for a wrong type. Tests of a
    # process without free descriptors would fail.
    # Without Clang's function: it takes calls between the plugin and a C program for calls through wrong types.
    # Without warnings of loops that are vectorised only without sanitizers, and of fences in the standard library.
    target_compile_options(${library} PUBLIC
      -fsanitize=${PARALET_SANITIZE} -fno-sanitize=vptr$<$<CXX_COMPILER_ID:Clang>:,function> -fno-omit-frame-pointer
      -fno-sanitize-recover=all $<IF:$<CXX_COMPILER_ID:Clang>,-Wno-pass-failed,-Wno-tsan>)
    target_link_options(${library} PUBLIC -fsanitize=${PARALET_SANITIZE})
  endif()
endfunction()

if(PARALET_PYTHON)
  find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
  find_package(pybind11 CONFIG REQUIRED)
endif()

# The Python extension NAME of PACKAGE: python/module.cpp, and further sources, over LIBRARIES. Only with PARALET_PYTHON.
function(paralet_python_module name libraries package)
  if(PARALET_PYTHON)
    set(target ${package}${name}) # packages have extensions of the same name
    pybind11_add_module(${target} NO_EXTRAS python/module.cpp ${ARGN}) # its extra is link-time optimisation
    set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name})
    target_include_directories(${target} PRIVATE .)
    target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-missing-field-initializers)
    target_link_libraries(${target} PRIVATE ${libraries})
    target_compile_options(${target} PRIVATE -O1 -g0) # off the data path
    add_dependencies(paralet_python ${target})
    install(TARGETS ${target} DESTINATION ${package} COMPONENT python)
  endif()
endfunction()

# The doctest program NAME of a file for each of COMPONENTS: DIR/test_X.cpp for DIR/X. Each component is a test, called
# PREFIX and the component. Further arguments are libraries.
function(paralet_test_program name prefix components)
  if(NOT TARGET paralet_test_main)
    # doctest's own code takes longer to compile than most tests.
    add_library(paralet_test_main STATIC ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/tests/main.cpp)
    target_compile_options(paralet_test_main PRIVATE -O0 -g0)
    target_link_libraries(paralet_test_main PUBLIC doctest::doctest)
    # Assertions are functions without a try block each: a sixth less time to compile.
    target_compile_definitions(paralet_test_main PUBLIC DOCTEST_CONFIG_SUPER_FAST_ASSERTS)
    paralet_sanitize(paralet_test_main)
  endif()
  # There are no races to find in tests without a second thread.
  if(PARALET_SANITIZE STREQUAL "thread")
    list(FILTER components EXCLUDE REGEX
         "^((collectives|soft|wire)/|(engine/handshake|path_client/messages|path_client/session|verbs/send_queue)$)")
  endif()
  list(TRANSFORM components REPLACE "([^/]+)$" "test_\\1.cpp" OUTPUT_VARIABLE sources)
  add_executable(${name} ${sources})
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wno-missing-field-initializers)
  set_target_properties(${name} PROPERTIES UNITY_BUILD_BATCH_SIZE 10) # more of them have the same names
  paralet_compile_quickly(${name})
  target_link_libraries(${name} PRIVATE paralet_test_main ${ARGN})
  foreach(component source IN ZIP_LISTS components sources)
    add_test(NAME ${prefix}${component} COMMAND ${name} --source-file=*/${source} --minimal)
  endforeach()
endfunction()
