// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "combine.hpp"

namespace paralet::cpu_device {
namespace {

using Values = std::vector<std::uint32_t>;

std::byte* bytes(Values& values) { return reinterpret_cast<std::byte*>(values.data()); }

// Reduces `own` and `received` into `results` with a guard element behind each; returns what the first result should
// be.
void check(const Reducer& reducer, bool with_own, std::size_t received_count, std::size_t result_count, bool in_place,
           bool post, std::size_t count) {
  constexpr std::uint32_t guard = 0xdeadbeef;
  Values own(count + 1);
  std::iota(own.begin(), own.end(), 1000);
  own[count] = guard;
  std::vector<Values> received(received_count, Values(count));
  std::vector<std::byte*> all;
  std::vector<const std::byte*> sources;
  sources.reserve(received_count);
  for (std::size_t i = 0; i < received_count; ++i) {
    std::iota(received[i].begin(), received[i].end(), static_cast<std::uint32_t>(7 * i + 1));
    sources.push_back(bytes(received[i]));
  }
  Values expected(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (with_own) expected[i] = own[i] * (reducer.has_pre() ? 3 : 1);
    for (const Values& values : received) expected[i] += values[i];
    if (post && reducer.has_post()) expected[i] /= 5;
  }
  std::vector<Values> results(result_count, Values(count + 1, guard));
  all.reserve(result_count);
  for (Values& values : results) all.push_back(bytes(values));
  if (in_place) all.front() = bytes(own);
  combine(reducer, with_own ? bytes(own) : nullptr, sources, all, count, post);
  for (std::size_t r = 0; r < result_count; ++r) {
    const Values& result = in_place && r == 0 ? own : results[r];
    REQUIRE(std::equal(expected.begin(), expected.end(), result.begin()));
    REQUIRE(result[count] == guard);
  }
}

TEST_CASE("any number of sources and results, in place and apart, across tiles") {
  const auto encoding = DivisorEncoding::sign_in_bit_0;
  const Reducer sum(Reduction::sum, Element::u32, 0, encoding);
  const Reducer scaled(Reduction::pre_mul_sum, Element::u32, 3, encoding);
  const Reducer divided(Reduction::sum_post_div, Element::u32, 10, encoding);
  for (const std::size_t count : {0, 1, 5, 2047, 2048, 2049, 9001}) {
    for (const Reducer& reducer : {sum, scaled, divided}) {
      for (std::size_t received = 0; received <= 3; ++received) {
        for (std::size_t results = 1; results <= 4; ++results) {
          for (const bool post : {false, true}) {
            check(reducer, true, received, results, false, post, count);
            check(reducer, true, received, results, true, post, count);
            if (received > 0) check(reducer, false, received, results, false, post, count);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace paralet::cpu_device
