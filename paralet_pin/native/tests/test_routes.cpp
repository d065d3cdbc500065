// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <poll.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "routes.hpp"

using namespace paralet;
using namespace paralet::pin;

namespace {

constexpr IpAddress kEarlier(0x0A090001);  // 10.9.0.1
constexpr IpAddress kLater(0x0A090002);    // 10.9.0.2
constexpr IpAddress kOther(0x0A080007);    // 10.8.0.7
constexpr int kTimeoutMs = 30'000;

bool runs(const char* command) { return std::system(command) == 0; }  // NOLINT(concurrency-mt-unsafe): one thread

bool has_changes(const Routes& routes) {
  pollfd waited{.fd = routes.changes(), .events = POLLIN, .revents = 0};
  return ::poll(&waited, 1, kTimeoutMs) == 1;
}

/// What a process with a network of its own finds: 0, or the number of the step that is wrong.
int follows_changes() {
  if (!runs("ip link set lo up && ip address add 10.9.0.1 dev lo && ip address add 10.9.0.2 dev lo")) return 1;
  Routes routes;
  if (routes.source(kOther)) return 2;
  if (!runs("ip route add 10.8.0.0/24 dev lo src 10.9.0.1")) return 3;
  if (!has_changes(routes)) return 4;
  routes.forget();
  if (routes.source(kOther) != kEarlier) return 5;
  if (!runs("ip route replace 10.8.0.0/24 dev lo src 10.9.0.2")) return 6;
  if (!has_changes(routes)) return 7;
  routes.forget();
  if (routes.source(kOther) != kLater) return 8;
  if (!runs("ip link set lo down")) return 9;
  if (!has_changes(routes)) return 10;
  routes.forget();
  return routes.source(kOther) ? 11 : 0;
}

TEST_CASE("the address that packets leave from is asked again when routes, or the interface, have changed") {
  constexpr int kNoNetwork = 99;
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const bool own = ::unshare(CLONE_NEWNET) == 0 || ::unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0;
    ::_exit(own ? follows_changes() : kNoNetwork);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoNetwork) {
    MESSAGE("skipped: this user may not make a network namespace");
    return;
  }
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("packets to this host leave from its own addresses") {
  Routes routes;
  CHECK(routes.source(IpAddress(0x7F000001)) == IpAddress(0x7F000001));
}

}  // namespace
