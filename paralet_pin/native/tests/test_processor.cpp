// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <vector>

#include "processor.hpp"

using namespace paralet;
using namespace paralet::pin;

namespace {

cpu_set_t allowed() {
  cpu_set_t found;
  CPU_ZERO(&found);
  REQUIRE(::sched_getaffinity(0, sizeof found, &found) == 0);
  return found;
}

bool same(const cpu_set_t& one, const cpu_set_t& other) { return CPU_EQUAL(&one, &other); }

}  // namespace

TEST_CASE("requests that come soon after one another keep the agent on their processor until they pause") {
  const cpu_set_t before = allowed();
  const int from = ::sched_getcpu();
  cpu_set_t there;
  CPU_ZERO(&there);
  CPU_SET(from, &there);
  Processor processor;
  processor.asked(from, 0);
  CHECK(processor.due() == kNever);
  CHECK(same(allowed(), before));
  processor.asked(from, 5);
  CHECK(processor.due() == 5 + Processor::kPause);
  CHECK(same(allowed(), there));
  processor.leave(4 + Processor::kPause);
  CHECK(same(allowed(), there));
  processor.leave(5 + Processor::kPause);
  CHECK(processor.due() == kNever);
  CHECK(same(allowed(), before));
}

TEST_CASE("the agent stays on a processor only while all requests come from there") {
  const cpu_set_t before = allowed();
  std::vector<int> from;
  for (int each = 0; each < CPU_SETSIZE && from.size() < 2; ++each) {
    if (CPU_ISSET(each, &before)) from.push_back(each);
  }
  if (from.size() < 2) {
    MESSAGE("skipped: this process may use one processor only");
    return;
  }
  Processor processor;
  for (int count = 0; count < 6; ++count) {
    processor.asked(from[count % 2], count);
    CHECK(same(allowed(), before));
  }
  processor.asked(from[1], 6);
  cpu_set_t there;
  CPU_ZERO(&there);
  CPU_SET(from[1], &there);
  CHECK(same(allowed(), there));
  processor.asked(from[0], 7);
  CHECK(processor.due() == kNever);
  CHECK(same(allowed(), before));
}

TEST_CASE("the agent goes to no processor that is unknown or not allowed") {
  const cpu_set_t before = allowed();
  Processor processor;
  int other = 0;
  while (CPU_ISSET(other, &before)) ++other;
  for (const int from : {-1, other, CPU_SETSIZE}) {
    processor.asked(from, 0);
    processor.asked(from, 1);
    CHECK(same(allowed(), before));
  }
}
