// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "engine/backlog.hpp"

namespace paralet {
namespace {

constexpr std::uint32_t kOneHost = 0x0A000001;
constexpr std::uint32_t kOtherHost = 0x0A000002;

std::shared_ptr<Connection> from(const IpAddress& host) {
  auto connection = std::make_shared<Connection>();
  connection->peer_address = host;
  connection->state = Connection::State::kOpen;
  return connection;
}

std::vector<std::shared_ptr<Connection>> add_some(Backlog& backlog, const IpAddress& host, int count) {
  std::vector<std::shared_ptr<Connection>> all;
  for (int i = 0; i < count; ++i) {
    all.push_back(from(host));
    CHECK(backlog.add(all.back()) == nullptr);
  }
  return all;
}

void end(Connection& connection) { connection.failure = Failure::kClosed; }

TEST_CASE("backlog: the oldest comes first, and hosts take turns") {
  Backlog backlog;
  CHECK(backlog.take() == nullptr);
  const auto ones = add_some(backlog, kOneHost, 3);
  const auto others = add_some(backlog, kOtherHost, 2);
  for (const auto& expected : {ones[0], others[0], ones[1], others[1], ones[2]}) CHECK(backlog.take() == expected);
  CHECK(backlog.take() == nullptr);
}

TEST_CASE("backlog: a connection that has ended comes after all others") {
  Backlog backlog;
  const auto ones = add_some(backlog, kOneHost, 2);
  const auto others = add_some(backlog, kOtherHost, 2);
  end(*ones[0]);
  end(*others[0]);
  for (const auto& expected : {ones[1], others[1], ones[0], others[0]}) CHECK(backlog.take() == expected);
}

TEST_CASE("backlog: when a host has too many, its oldest that has ended goes; without one the new one is refused") {
  Backlog backlog(3);
  const auto ones = add_some(backlog, kOneHost, 3);
  const auto refused = from(kOneHost);
  CHECK(backlog.add(refused) == refused);
  add_some(backlog, kOtherHost, 3);
  end(*ones[1]);
  end(*ones[2]);
  const auto added = from(kOneHost);
  CHECK(backlog.add(added) == ones[1]);
  std::vector<std::shared_ptr<Connection>> left;
  while (const auto connection = backlog.take()) {
    if (connection->peer_address == IpAddress(kOneHost)) left.push_back(connection);
  }
  CHECK(left == std::vector{ones[0], added, ones[2]});
}

}  // namespace
}  // namespace paralet
