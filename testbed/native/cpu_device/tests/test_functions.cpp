// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "functions.hpp"

namespace paralet::cpu_device {
namespace {

TEST_CASE("a function's name says what it does") {
  const Function function = parse_function("AllReduce_SumPostDiv_u32_RING_LL128");
  CHECK(function.known);
  CHECK(function.collective == Collective::all_reduce);
  CHECK(function.reduction == Reduction::sum_post_div);
  CHECK(function.element == Element::u32);
  CHECK(function.algorithm == Algorithm::ring);
  CHECK(function.protocol == Protocol::ll128);
  CHECK(function.name == "AllReduce_SumPostDiv_u32_RING_LL128");
}

TEST_CASE("an algorithm's name may have two words") {
  const Function function = parse_function("ReduceScatter_MinMax_bf16_COLLNET_DIRECT_SIMPLE");
  CHECK(function.known);
  CHECK(function.algorithm == Algorithm::collnet_direct);
  CHECK(function.protocol == Protocol::simple);
}

TEST_CASE("a function that moves data has no reduction") {
  const Function function = parse_function("AllGatherV_RING_LL");
  CHECK(function.known);
  CHECK(function.collective == Collective::all_gather_v);
  CHECK(function.reduction == Reduction::none);
  CHECK(function.element == Element::none);
  CHECK(parse_function("SendRecv").known);
}

TEST_CASE("a name with an unknown part is an unknown function") {
  for (const char* name : {"", "Nop", "AllToAll_RING_LL", "AllReduce_Median_f32_RING_LL", "AllReduce_Sum_f4_RING_LL",
                           "AllReduce_Sum_f32_MESH_LL", "AllReduce_Sum_f32_RING_FAST", "AllReduce_Sum_f32",
                           "Broadcast_LL", "SendRecv_RING_LL"}) {
    CAPTURE(name);
    CHECK_FALSE(parse_function(name).known);
  }
}

TEST_CASE("the identifier of a mangled name") {
  CHECK(identifier("_Z20ncclDevFunc_SendRecvv") == "ncclDevFunc_SendRecv");
  CHECK(identifier("cudaMalloc") == "cudaMalloc");
  CHECK(identifier("_ZN4nccl1fEv") == "_ZN4nccl1fEv");
  CHECK(identifier("_Z99short") == "_Z99short");
}

}  // namespace
}  // namespace paralet::cpu_device
