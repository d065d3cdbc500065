// SPDX-License-Identifier: Apache-2.0
// A program that opens libibverbs itself, as NCCL does (src/misc/ibvsymbols.cc): dlopen, then dlvsym for each function.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <string>

#include "given_ports.hpp"
#include "verbs_program.hpp"
#include "wire/flow_label.hpp"

namespace paralet::pin {
namespace {

#if defined(__aarch64__)
constexpr const char* kFirstVersion = "GLIBC_2.17";
#else
constexpr const char* kFirstVersion = "GLIBC_2.2.5";
#endif

void* library() {
  static void* const one = ::dlopen(LIBIBVERBS, RTLD_NOW | RTLD_LOCAL);
  return one;
}

/// What a lookup has found, as a function of any type.
struct Found {
  void* address;
  template <typename Function>
  operator Function*() const {  // NOLINT(google-explicit-constructor)
    return reinterpret_cast<Function*>(address);
  }
};

Found find(const char* name) { return {::dlsym(library(), name)}; }
Found find_version(const char* name) { return {::dlvsym(library(), name, "IBVERBS_1.1")}; }

TEST_CASE("queue pairs of a program that looks libibverbs' functions up have planned ports") {
  REQUIRE(library() != nullptr);
  // The fake library has versions of three functions only.
  const test::Functions functions{.get_device_list = find("ibv_get_device_list"),
                                  .open_device = find("ibv_open_device"),
                                  .close_device = find("ibv_close_device"),
                                  .alloc_pd = find("ibv_alloc_pd"),
                                  .dealloc_pd = find("ibv_dealloc_pd"),
                                  .create_cq = find("ibv_create_cq"),
                                  .destroy_cq = find("ibv_destroy_cq"),
                                  .create_qp = find_version("ibv_create_qp"),
                                  .modify_qp = find_version("ibv_modify_qp"),
                                  .destroy_qp = find_version("ibv_destroy_qp")};
  given_ports().ports = {50001};
  const test::Opened device(functions);
  ibv_qp* qp = device.create();
  CHECK(device.connect(qp) == 0);
  REQUIRE(given_ports().held.size() == 1);
  CHECK(given_ports().asked[0].what == "queue pair 0x11 of fake0");
  std::uint16_t (*port)(std::uint32_t) = find("fake_verbs_port");
  CHECK(port(qp->qp_num) == 50001);
  CHECK(device.destroy(qp) == 0);
  CHECK(given_ports().held.empty());
}

TEST_CASE("lookups of anything else give what they gave before") {
  CHECK(::dlvsym(library(), "ibv_modify_qp", "IBVERBS_9.9") == nullptr);
  CHECK(std::string(::dlerror()).find("IBVERBS_9.9") != std::string::npos);
  CHECK(::dlvsym(library(), "no_such_function", "IBVERBS_1.1") == nullptr);
  CHECK(::dlvsym(library(), "ibv_create_qp", "IBVERBS_1.1") == ::dlsym(library(), "ibv_create_qp"));
  // libm comes before the library with the stand-ins here: it is next for this program only.
  CHECK(::dlvsym(RTLD_NEXT, "cos", kFirstVersion) != nullptr);
}

}  // namespace
}  // namespace paralet::pin
