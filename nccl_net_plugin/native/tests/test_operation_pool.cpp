// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <set>

#include "comm.hpp"
#include "operation_pool.hpp"

namespace paralet::plugin {
namespace {

using State = Request::State;

TEST_CASE("a pool provides operations up to its capacity, and more only after one is given back") {
  OperationPool pool(nullptr, 3);
  const std::array<const Memory*, 1> none{};
  std::set<Operation*> lent;
  for (int i = 0; i < 3; ++i) lent.insert(pool.take(none));
  CHECK(lent.size() == 3);
  CHECK_FALSE(lent.contains(nullptr));
  CHECK(pool.take(none) == nullptr);
  Operation* back = *lent.begin();
  pool.give_back(*back);
  CHECK(pool.take(none) == back);
  CHECK(pool.take(none) == nullptr);
}

TEST_CASE("engine requests are reused, for any order in which operations are given back") {
  OperationPool pool(nullptr, 32);
  const std::array<const Memory*, 8> none{};
  std::set<const Request*> requests;
  for (int round = 0; round < 3; ++round) {
    std::array<Operation*, 32> lent{};
    for (Operation*& operation : lent) {
      operation = pool.take(none);
      REQUIRE(operation != nullptr);
      REQUIRE(operation->count == 8);
      for (unsigned i = 0; i < 8; ++i) requests.insert(operation->parts[i].request.get());
    }
    for (std::size_t i = 0; i < lent.size(); ++i) pool.give_back(*lent[(i * 7 + 3) % lent.size()]);
  }
  CHECK(requests.size() == 32U * 8U);
}

TEST_CASE("a group uses only the parts it needs") {
  OperationPool pool(nullptr, 1);
  const std::array<const Memory*, 8> none{};
  Operation* eight = pool.take(none);
  REQUIRE(eight != nullptr);
  pool.give_back(*eight);
  CHECK(eight->count == 0);
  Operation* two = pool.take(std::span(none).first(2));
  CHECK(two == eight);
  CHECK(two->count == 2);
}

TEST_CASE("pending parts of a memory are found until they are done or failed") {
  OperationPool pool(nullptr, 4);
  const Memory here;
  const Memory elsewhere;
  const std::array<const Memory*, 2> memories = {&elsewhere, &here};
  Operation* operation = pool.take(memories);
  REQUIRE(operation != nullptr);
  const auto in = [](const Memory& memory) {
    return [&memory](const Operation::Part& part) { return part.memory == &memory; };
  };
  CHECK(pool.any_pending(in(here)));
  operation->parts[1].request->state = State::kDone;
  CHECK_FALSE(pool.any_pending(in(here)));
  CHECK(pool.any_pending(in(elsewhere)));
  operation->parts[0].request->state = State::kFailed;
  CHECK_FALSE(pool.any_pending(in(elsewhere)));
  operation->parts[0].request->state = State::kPending;
  pool.give_back(*operation);
  CHECK_FALSE(pool.any_pending([](const auto&) { return true; }));
}

TEST_CASE("memory contains ranges up to its last byte") {
  std::array<std::byte, 64> bytes{};
  const Memory memory{.device = nullptr, .base = bytes.data(), .length = bytes.size(), .rkey = 1};
  CHECK(memory.holds(bytes.data(), 64));
  CHECK(memory.holds(bytes.data() + 63, 1));
  CHECK(memory.holds(nullptr, 0));
  CHECK_FALSE(memory.holds(bytes.data() + 63, 2));
  CHECK_FALSE(memory.holds(bytes.data() - 1, 1));
  CHECK_FALSE(memory.holds(bytes.data(), SIZE_MAX));
}

}  // namespace
}  // namespace paralet::plugin
