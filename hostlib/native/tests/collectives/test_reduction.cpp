// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/half.hpp"
#include "collectives/reduction.hpp"

namespace paralet::collectives {
namespace {

/// The reduction of two arrays, at an odd address.
template <typename T>
std::vector<T> combined(DataType type, ReduceOp op, const std::vector<T>& a, const std::vector<T>& b) {
  const auto found = reduction(type, op);
  REQUIRE(found);
  REQUIRE(element_bytes(type) == sizeof(T));
  const std::size_t bytes = a.size() * sizeof(T);
  std::vector<std::byte> memory(2 * bytes + 2, std::byte{0x5a});
  std::byte* const left = memory.data() + 1;
  std::memcpy(left, static_cast<const void*>(a.data()), bytes);
  std::memcpy(left + bytes, static_cast<const void*>(b.data()), bytes);
  found->combine(left, left, left + bytes, a.size());
  CHECK(memory.front() == std::byte{0x5a});
  CHECK(memory.back() == std::byte{0x5a});
  CHECK(std::memcmp(left + bytes, static_cast<const void*>(b.data()), bytes) == 0);
  std::vector<T> out(a.size());
  std::memcpy(static_cast<void*>(out.data()), left, bytes);
  return out;
}

TEST_CASE("names go both ways") {
  for (unsigned i = 0; i < kDataTypes; ++i)
    CHECK(parse_data_type(to_string(static_cast<DataType>(i))) == static_cast<DataType>(i));
  for (unsigned i = 0; i < kReduceOps; ++i)
    CHECK(parse_reduce_op(to_string(static_cast<ReduceOp>(i))) == static_cast<ReduceOp>(i));
  CHECK(!parse_data_type("float8"));
  CHECK(!parse_reduce_op(""));
  CHECK(to_string(static_cast<DataType>(kDataTypes)) == nullptr);
  CHECK(to_string(static_cast<ReduceOp>(kReduceOps)) == nullptr);
}

TEST_CASE("integers wrap around") {
  CHECK(combined<std::int8_t>(DataType::kInt8, ReduceOp::kSum, {127, -128, 5}, {1, -1, -7}) ==
        std::vector<std::int8_t>{-128, 127, -2});
  CHECK(combined<std::int16_t>(DataType::kInt16, ReduceOp::kProduct, {-32768, 300}, {-32768, 300}) ==
        std::vector<std::int16_t>{0, 24464});
  CHECK(combined<std::int32_t>(DataType::kInt32, ReduceOp::kSum, {INT32_MAX}, {1}) ==
        std::vector<std::int32_t>{INT32_MIN});
  CHECK(combined<std::int64_t>(DataType::kInt64, ReduceOp::kProduct, {INT64_MIN}, {-1}) ==
        std::vector<std::int64_t>{INT64_MIN});
}

TEST_CASE("signed integers compare with their sign, and bits combine") {
  CHECK(combined<std::int8_t>(DataType::kInt8, ReduceOp::kMin, {-1, 3}, {1, 2}) == std::vector<std::int8_t>{-1, 2});
  CHECK(combined<std::int64_t>(DataType::kInt64, ReduceOp::kMax, {-1, 3}, {1, 2}) == std::vector<std::int64_t>{1, 3});
  CHECK(combined<std::uint8_t>(DataType::kUint8, ReduceOp::kMax, {255}, {1}) == std::vector<std::uint8_t>{255});
  CHECK(combined<std::int32_t>(DataType::kInt32, ReduceOp::kBitXor, {-1}, {5}) == std::vector<std::int32_t>{~5});
  CHECK(combined<std::int16_t>(DataType::kInt16, ReduceOp::kBitAnd, {-256}, {0x1ff}) ==
        std::vector<std::int16_t>{0x100});
  CHECK(combined<std::uint8_t>(DataType::kUint8, ReduceOp::kBitOr, {0x81}, {0x18}) == std::vector<std::uint8_t>{0x99});
}

TEST_CASE("bool stays 0 or 1") {
  const std::vector<std::uint8_t> a{0, 0, 1, 1};
  const std::vector<std::uint8_t> b{0, 1, 0, 1};
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kBitOr}) {
    CHECK(combined(DataType::kBool, op, a, b) == std::vector<std::uint8_t>{0, 1, 1, 1});
  }
  for (const ReduceOp op : {ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kBitAnd}) {
    CHECK(combined(DataType::kBool, op, a, b) == std::vector<std::uint8_t>{0, 0, 0, 1});
  }
  CHECK(combined(DataType::kBool, ReduceOp::kBitXor, a, b) == std::vector<std::uint8_t>{0, 1, 1, 0});
}

TEST_CASE("the smaller or larger of a number and NaN is NaN") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    const auto out = combined<float>(DataType::kFloat32, op, {nan, 1, nan, 2}, {1, nan, nan, 3});
    CHECK(std::isnan(out[0]));
    CHECK(std::isnan(out[1]));
    CHECK(std::isnan(out[2]));
    CHECK(out[3] == (op == ReduceOp::kMin ? 2.0F : 3.0F));
  }
}

TEST_CASE("float16 and bfloat16 are computed in float32 and rounded once") {
  // 2048 + 1 is a tie in float16 and goes to even; 2048 + 3 lies between 2050 and 2052, and goes to 2052.
  const auto sums =
      combined<Float16>(DataType::kFloat16, ReduceOp::kSum, {Float16(2048), Float16(2048), Float16(60000)},
                        {Float16(1), Float16(3), Float16(60000)});
  CHECK(static_cast<float>(sums[0]) == 2048.0F);
  CHECK(static_cast<float>(sums[1]) == 2052.0F);
  CHECK(std::isinf(static_cast<float>(sums[2])));
  const auto products = combined<BFloat16>(DataType::kBFloat16, ReduceOp::kProduct, {BFloat16(3), BFloat16(1e30F)},
                                           {BFloat16(-5), BFloat16(0)});
  CHECK(static_cast<float>(products[0]) == -15.0F);
  CHECK(static_cast<float>(products[1]) == 0.0F);
}

TEST_CASE("averages divide, integers towards zero") {
  std::vector<std::int32_t> integers{7, -7, 0};
  reduction(DataType::kInt32, ReduceOp::kAverage)->divide(reinterpret_cast<std::byte*>(integers.data()), 3, 2);
  CHECK(integers == std::vector<std::int32_t>{3, -3, 0});
  std::vector<double> floats{1, -3};
  reduction(DataType::kFloat64, ReduceOp::kAverage)->divide(reinterpret_cast<std::byte*>(floats.data()), 2, 4);
  CHECK(floats == std::vector<double>{0.25, -0.75});
  const bool divides = reduction(DataType::kFloat32, ReduceOp::kSum)->divide != nullptr;
  CHECK(!divides);
}

TEST_CASE("operators that are not defined") {
  for (const DataType type : {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat32, DataType::kFloat64}) {
    for (const ReduceOp op : {ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor}) CHECK(!reduction(type, op));
  }
  CHECK(!reduction(DataType::kBool, ReduceOp::kAverage));
}

}  // namespace
}  // namespace paralet::collectives
