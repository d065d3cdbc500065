// SPDX-License-Identifier: Apache-2.0
// The `verbs` back end over a libibverbs without the optional calls, and without libmlx5.
#include "base/errors.hpp"
#include "verbs/verbs_backend.hpp"
#include "verbs_scene.hpp"

namespace paralet {
namespace {

TEST_CASE("without the optional calls messages arrive, with flow labels and without ECE") {
  test::VerbsPair pair(2);
  pair.check(64);
  pair.check(100'000);
  CHECK(pair.one.counters().lanes.at(0).method == PortMethod::kFlowLabel);
  for (const std::string& call : fake_verbs::record().calls) CHECK(call.starts_with("rt"));
}

TEST_CASE("without the call dma-bufs are rejected and not reported as supported") {
  CHECK_FALSE(verbs_ports().at(0).dmabuf);
  Device device(test::verbs_options(1));
  std::byte name{};
  CHECK_THROWS_WITH_AS(device.register_device_memory(&name, 4096, DmaBuf{1, 0}),
                       "this libibverbs cannot register a dma-buf (rdma-core 34 can)", DeviceError);
}

}  // namespace
}  // namespace paralet
