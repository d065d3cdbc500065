// SPDX-License-Identifier: Apache-2.0
// Numbers that wrap around while messages are under way.
#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "engine/device_fixture.hpp"
#include "soft/soft_backend.hpp"

namespace paralet {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture

/// A device whose QPs have a few PSNs left before they wrap.
struct Wrapping {
  static DeviceOptions options_of(const IpAddress& address) {
    DeviceOptions out = options(address, 2);
    out.path_mtu = 256;
    out.flowlet_bytes = 50'000;
    return out;
  }
  static std::unique_ptr<Backend> backend(const IpAddress& address, std::uint32_t left, std::uint32_t offers,
                                          const Faults& faults) {
    SoftOptions out;
    out.address = address;
    out.min_timeout = 5 * kMillisecond;
    out.offers = offers;
    out.faults = faults;
    out.first_psn = 0x1000000 - left;
    return std::make_unique<SoftBackend>(out);
  }
  Wrapping(const IpAddress& address, std::uint32_t left, std::uint32_t offers, const Faults& faults)
      : device(options_of(address), backend(address, left, offers, faults)) {}
  Device device;
};

TEST_CASE("PSNs wrap in both directions, with loss and reordering and both kinds of recovery") {
  const Faults none;
  const Faults lossy{.drop = 0.01, .duplicate = 0.01, .reorder = 0.02, .reorder_packets = 32};
  for (const std::uint32_t offers : {0U, kSelectiveRepeat | kMarkCounts | kHostDelays}) {
    for (const Faults& faults : {none, lossy}) {
      CAPTURE(offers);
      CAPTURE(faults.drop);
      Wrapping a(kA, 100, offers, faults);
      Wrapping b(kB, 333, offers, faults);
      const Joined joined(a.device, b.device);
      const Bytes out = random_fill(offers, 300'000);
      const Bytes back = random_fill(offers + 1, 300'000);
      std::vector<MessagePtr> messages;
      for (std::uint32_t tag = 0; tag < 2; ++tag) {
        messages.push_back(joined.receive(Bytes(out.size()), tag));
        messages.push_back(joined.receive_back(Bytes(back.size()), tag));
        messages.push_back(joined.send(out, tag));
        messages.push_back(joined.send_back(back, tag));
      }
      for (const MessagePtr& message : messages) require_done(message);
      for (std::size_t i = 0; i < messages.size(); i += 4) {
        CHECK(messages[i]->memory == out);
        CHECK(messages[i + 1]->memory == back);
      }
      for (Device* device : {&a.device, &b.device}) {
        for (const LaneCounters& lane : device->counters().lanes) CHECK(lane.qp.counters.tx_packets > 333);
      }
    }
  }
}

}  // namespace
}  // namespace paralet
