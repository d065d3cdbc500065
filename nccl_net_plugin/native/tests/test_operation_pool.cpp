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
  std::set<Operation*> lent;
  for (int i = 0; i < 3; ++i) lent.insert(pool.take(8));
  CHECK(lent.size() == 3);
  CHECK_FALSE(lent.contains(nullptr));
  CHECK(pool.take(8) == nullptr);
  Operation* back = *lent.begin();
  pool.give_back(*back);
  CHECK(pool.take(8) == back);
  CHECK(pool.take(8) == nullptr);
}

TEST_CASE("engine requests are reused, for any order in which operations are given back") {
  OperationPool pool(nullptr, 32);
  std::set<const Request*> requests;
  for (int round = 0; round < 3; ++round) {
    std::array<Operation*, 32> lent{};
    for (Operation*& operation : lent) {
      operation = pool.take(8);
      REQUIRE(operation != nullptr);
      REQUIRE(operation->count == 8);
      for (unsigned i = 0; i < 8; ++i) requests.insert(operation->parts[i].get());
    }
    for (std::size_t i = 0; i < lent.size(); ++i) pool.give_back(*lent[(i * 7 + 3) % lent.size()]);
  }
  CHECK(requests.size() == 32U * 8U);
}

TEST_CASE("a group uses only the parts it needs") {
  OperationPool pool(nullptr, 1);
  Operation* eight = pool.take(8);
  REQUIRE(eight != nullptr);
  pool.give_back(*eight);
  CHECK(eight->count == 0);
  Operation* two = pool.take(2);
  CHECK(two == eight);
  CHECK(two->count == 2);
}

TEST_CASE("unfinished requests are listed until they are done or failed") {
  OperationPool pool(nullptr, 4);
  Operation* operation = pool.take(2);
  REQUIRE(operation != nullptr);
  const auto pending = [&pool] {
    std::vector<std::shared_ptr<Request>> out;
    pool.pending(out);
    return out;
  };
  CHECK(pending() == operation->parts);
  operation->parts[1]->state = State::kDone;
  CHECK(pending() == std::vector{operation->parts[0]});
  operation->parts[0]->state = State::kFailed;
  CHECK(pending().empty());
  operation->parts[0]->state = State::kPending;
  pool.give_back(*operation);
  CHECK(pending().empty());
}

}  // namespace
}  // namespace paralet::plugin
