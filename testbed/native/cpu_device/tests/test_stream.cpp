// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "stream.hpp"

namespace paralet::cpu_device {
namespace {

std::shared_ptr<Stream> stream() { return std::make_shared<Stream>(false, 0, 7); }

TEST_CASE("work runs in order and returns at once") {
  const auto queue = stream();
  const auto gate = std::make_shared<Completion>();
  std::vector<int> order;
  queue->submit([&] { order.push_back(1); }, {gate});
  queue->submit([&] { order.push_back(2); });
  const auto last = queue->submit([&] { order.push_back(3); });
  CHECK_FALSE(last->done());
  CHECK_FALSE(queue->idle());
  gate->complete();
  last->wait();
  CHECK(order == std::vector{1, 2, 3});
  CHECK(queue->idle());
  queue->close();
}

TEST_CASE("work of a closed stream still runs") {
  const auto gate = std::make_shared<Completion>();
  CompletionPtr end;
  bool ran = false;
  {
    const auto queue = stream();
    end = queue->submit([&] { ran = true; }, {gate});
    queue->close();
  }
  gate->complete();
  end->wait();
  CHECK(ran);
}

TEST_CASE("streams wait for each other and for nothing else") {
  const auto first = stream();
  const auto second = stream();
  const auto gate = std::make_shared<Completion>();
  const auto slow = first->submit({}, {gate});
  const auto after = second->submit({}, {slow});
  const auto other = stream();
  other->submit({})->wait();
  CHECK_FALSE(after->done());
  gate->complete();
  after->wait();
  CHECK(slow->done());
  CHECK(slow->at() <= after->at());
  for (const auto& each : {first, second, other}) each->close();
}

}  // namespace
}  // namespace paralet::cpu_device
