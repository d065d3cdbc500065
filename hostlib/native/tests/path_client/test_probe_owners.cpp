// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "path_client/probe_owners.hpp"

namespace paralet::path_client {
namespace {

constexpr std::uint16_t kPort = 50000;

ProbeOwners::Owner wanted(std::optional<std::uint64_t> ask, Nanos since, std::uint32_t qpn = 17) {
  return {.ask = ask, .peer = PeerName(0x0A000102), .qpn = qpn, .first = ask.has_value(), .since = since};
}

TEST_CASE("a probe is for who wanted it, the oldest first, and nobody's when it was removed") {
  ProbeOwners owners;
  const prober::Probe probe = owners.add(wanted(1, 0), 0, kPort, 3);
  CHECK(probe == prober::Probe{.target = 0, .source_port = kPort, .ttl = 3, .qpn = 17, .first = true});
  CHECK(owners.add(wanted(2, 0), 0, kPort, 3) == probe);
  CHECK(owners.settled(probe)->ask == 1);
  CHECK(owners.remove(2, 0, kPort, 3) == probe);
  CHECK_FALSE(owners.remove(2, 0, kPort, 3));
  CHECK_FALSE(owners.settled(probe));
}

TEST_CASE("an answer serves all that wanted to know the same when the probe left") {
  ProbeOwners owners;
  const prober::Probe watch = owners.add(wanted({}, 1), 0, kPort, 3);
  const prober::Probe ask = owners.add(wanted(1, 5), 0, kPort, 3);
  owners.add(wanted(2, 6), 0, kPort, 3);      // routes may have changed since the probe left
  owners.add(wanted(3, 1, 18), 0, kPort, 3);  // some switches hash the QPN
  owners.add(wanted(4, 1), 0, kPort, 4);
  owners.add(wanted(5, 1), 1, kPort, 3);
  CHECK_FALSE(owners.settled(watch)->ask);
  const auto served = owners.served(watch, 5);
  REQUIRE(served.size() == 1);
  CHECK(served[0].first == ask);
  CHECK(served[0].second.ask == 1);
  CHECK(owners.served(watch, 5).empty());
  for (const std::uint64_t kept : {2, 3}) CHECK(owners.remove(kept, 0, kPort, 3));
}

}  // namespace
}  // namespace paralet::path_client
