// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <doctest/doctest.h>

#include "agent_link.hpp"
#include "fake_agent.hpp"

using namespace paralet;
using namespace paralet::pin;

namespace {

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

}  // namespace

TEST_CASE("a reply comes, and no descriptor stays") {
  FakeAgent agent([](const Request& request) { return Reply{.port = request.remote_port, .id = 9}; });
  const AgentLink link(agent.path());
  REQUIRE(link.on());
  const std::size_t before = open_descriptors();
  const auto reply = link.ask({.remote_port = 77, .wait = kSecond * 10});
  REQUIRE(reply);
  CHECK(reply->port == 77);
  CHECK(reply->id == 9);
  link.tell({.kind = RequestKind::kGiveBack, .id = 9});
  CHECK(open_descriptors() <= before + 1);  // the agent, in this process, may not have closed its end yet
}

TEST_CASE("an agent that does not reply is waited for no longer than the program says") {
  FakeAgent agent([](const Request&) { return std::nullopt; });
  const AgentLink link(agent.path());
  CHECK_FALSE(link.ask({.wait = kMillisecond}));
}

TEST_CASE("no agent, and a reply of another version") {
  CHECK_FALSE(AgentLink("").on());
  CHECK_FALSE(AgentLink(std::string(200, 'x')).on());
  CHECK_FALSE(AgentLink("/nowhere/agent").ask({.wait = kSecond}));
  FakeAgent agent([](const Request&) { return Reply{.magic = kMagic + 1, .port = 5}; });
  CHECK_FALSE(AgentLink(agent.path()).ask({.wait = kSecond * 10}));
}
