// SPDX-License-Identifier: Apache-2.0
// The profiler plugin, called as NCCL calls it.
#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include "nccl_profiler.h"

extern "C" const ncclProfiler_v5_t ncclProfiler_v5;

namespace paralet::profiler {
namespace {

void* opened() {
  void* context = nullptr;
  int mask = 0;
  REQUIRE(ncclProfiler_v5.init(&context, 0xAB, &mask, "training", 2, 2, 1, nullptr) == ncclSuccess);
  CHECK(mask == (ncclProfileColl | ncclProfileP2p | ncclProfileProxyOp | ncclProfileProxyStep | ncclProfileNetPlugin));
  return context;
}

void* started(void* context, ncclProfilerEventDescr_v5_t event) {
  void* handle = nullptr;
  CHECK(ncclProfiler_v5.startEvent(context, &handle, &event) == ncclSuccess);
  return handle;
}

// What this process publishes at present.
std::optional<std::string> published() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path(), gone) != "/memfd:paralet-operations (deleted)") continue;
    std::ifstream file(entry.path());
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  return std::nullopt;
}

// The operations in a snapshot; an empty list while the snapshot is being written.
nlohmann::json operations() {
  const std::string snapshot = published().value_or("");
  const std::size_t line = snapshot.find('\n');
  if (line == std::string::npos) return nlohmann::json::array();
  const std::size_t bytes = std::stoul(snapshot.substr(snapshot.rfind(' ', line) + 1));
  const nlohmann::json document = nlohmann::json::parse(snapshot.substr(line + 1, bytes), nullptr, false);
  return document.is_discarded() ? nlohmann::json::array() : document["operations"];
}

TEST_CASE("events of a collective are published until the last communicator ends") {
  void* const context = opened();
  ncclProfilerEventDescr_v5_t event{.type = ncclProfileColl, .rank = 1};
  event.coll = {.seqNumber = 3, .func = "AllReduce", .count = 1024, .datatype = "ncclFloat32", .algo = "RING"};
  void* const operation = started(context, event);
  event = {.type = ncclProfileProxyOp, .parentObj = operation, .rank = 1};
  event.proxyOp = {.pid = ::getpid(), .channelId = 0, .peer = 0, .nSteps = 2, .chunkSize = 4096, .isSend = 1};
  void* const transfers = started(context, event);
  event.proxyOp.pid = ::getpid() + 1;
  CHECK(started(context, event) == nullptr);  // another process's
  event = {.type = ncclProfileProxyStep, .parentObj = transfers, .rank = 1};
  event.proxyStep = {.step = 0};
  void* const step = started(context, event);
  CHECK(ncclProfiler_v5.recordEventState(step, ncclProfilerProxyStepSendWait, nullptr) == ncclSuccess);
  nlohmann::json under_way;
  while ((under_way = operations()).empty() || under_way[0]["waits"].empty() ||
         under_way[0]["waits"][0]["on"] != "network") {
    std::this_thread::yield();  // the test's time limit ends it
  }
  CHECK(under_way[0]["function"] == "AllReduce");
  CHECK(under_way[0]["name"] == "training");
  CHECK(under_way[0]["sequence"] == 3);
  for (void* const handle : {step, transfers, operation}) {
    CHECK(ncclProfiler_v5.stopEvent(handle) == ncclSuccess);
  }
  CHECK(ncclProfiler_v5.finalize(context) == ncclSuccess);
  CHECK(!published().has_value());
}

TEST_CASE("communicators that begin while the last one ends do not hold up its end") {
  std::array<std::thread, 2> threads;
  for (std::thread& thread : threads) {
    thread = std::thread([] {
      for (int i = 0; i < 500; ++i) ncclProfiler_v5.finalize(opened());
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(!published().has_value());
}

}  // namespace
}  // namespace paralet::profiler
