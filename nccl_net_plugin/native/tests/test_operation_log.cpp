// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "operation_log.hpp"
#include "snapshot.hpp"

namespace paralet::profiler {
namespace {

using Handle = OperationLog::Handle;

std::shared_ptr<const Communicator> communicator(const char* name = "training") {
  return std::make_shared<Communicator>(Communicator{.name = name, .hash = 0xAB, .ranks = 4, .rank = 1});
}

Enqueued all_reduce(std::uint64_t sequence) {
  return {.function = "AllReduce",
          .type = "ncclFloat32",
          .algorithm = "RING",
          .protocol = "SIMPLE",
          .sequence = sequence,
          .count = 1024};
}

paraletProfilerEvent_v1_t flowlet(std::int64_t began, std::int64_t ended, std::uint32_t lane) {
  return {.type = PARALET_PROFILE_FLOWLET,
          .receive = 0,
          .source_port = static_cast<std::uint16_t>(50'000 + lane),
          .lane = lane,
          .qp = 7,
          .peer = 0x0A000002,
          .bytes = 4096,
          .began_ns = began,
          .ended_ns = ended};
}

TEST_CASE("an operation is told from its first transfer to its last") {
  OperationLog log;
  const Handle operation = log.enqueue(communicator(), all_reduce(3), 10);
  CHECK(log.report(8).empty());  // nothing of it uses the network yet
  log.stop(operation, 11);       // enqueued
  const Handle sends = log.begin(operation, {.channel = 0, .peer = 2, .steps = 2, .send = true}, 20);
  const Handle receives = log.begin(operation, {.channel = 0, .peer = 0, .steps = 2, .send = false}, 21);
  log.stop(sends, 30);
  REQUIRE(log.report(8).size() == 1);
  CHECK(log.report(8).front().ended_ns == 0);
  log.stop(receives, 40);
  const Operation reported = log.report(8).front();
  CHECK(reported.function == "AllReduce");
  CHECK(reported.sequence == 3);
  CHECK(reported.enqueued_ns == 10);
  CHECK(reported.began_ns == 20);
  CHECK(reported.ended_ns == 40);
  CHECK(reported.waits.empty());
}

TEST_CASE("the oldest step of each direction says what it waits for, and since when") {
  OperationLog log;
  const Handle operation = log.enqueue(communicator(), all_reduce(0), 0);
  const Handle sends = log.begin(operation, {.channel = 1, .peer = 2, .steps = 16, .send = true}, 1);
  const Handle receives = log.begin(operation, {.channel = 1, .peer = 0, .steps = 16, .send = false}, 1);
  const Handle first = log.begin_step(sends, 0, 10);
  const Handle second = log.begin_step(sends, 1, 11);
  log.begin_step(receives, 5, 15);
  log.waits(first, Wait::kNetwork, 12);
  log.waits(second, Wait::kPeer, 13);
  std::vector<Waiting> waits = log.report(8).front().waits;
  REQUIRE(waits.size() == 2);
  CHECK(waits[0].transfers.peer == 2);
  CHECK(waits[0].on == Wait::kNetwork);
  CHECK(waits[0].since_ns == 12);
  CHECK(waits[1].transfers.peer == 0);
  CHECK(waits[1].on == Wait::kNetwork);
  CHECK(waits[1].since_ns == 15);
  log.waits(first, Wait::kNetwork, 14);  // the same again is no news
  CHECK(log.report(8).front().waits[0].since_ns == 12);
  log.stop(first, 16);
  waits = log.report(8).front().waits;
  CHECK(waits[0].on == Wait::kPeer);
  CHECK(waits[0].step == 1);
}

TEST_CASE("a send of which no flowlet has left waits for the peer's receive") {
  OperationLog log;
  const Handle operation = log.enqueue(communicator(), all_reduce(0), 0);
  const Handle step = log.begin_step(log.begin(operation, {.peer = 2, .steps = 1, .send = true}, 1), 0, 0);
  log.waits(step, Wait::kNetwork, 5);
  CHECK(log.report(8).front().waits[0].on == Wait::kNetwork);  // over another network nothing is known
  paraletProfilerEvent_v1_t message = flowlet(6, 0, 0);
  message.type = PARALET_PROFILE_MESSAGE;
  log.begin_message(step, message);
  CHECK(log.report(8).front().waits[0].on == Wait::kPeer);
  log.begin_message(step, flowlet(7, 0, 1));
  CHECK(log.report(8).front().waits[0].on == Wait::kNetwork);
}

TEST_CASE("messages and flowlets are counted for their operation") {
  OperationLog log;
  const Handle operation = log.enqueue(communicator(), all_reduce(0), 0);
  const Handle step = log.begin_step(log.begin(operation, {.peer = 2, .steps = 1, .send = true}, 1), 0, 0);
  const auto told_of = [&](const paraletProfilerEvent_v1_t& data) { log.tell(log.begin_message(step, data), data); };
  told_of(flowlet(100, 400, 3));
  told_of(flowlet(100, 200, 4));
  told_of(flowlet(100, 0, 5));  // failed
  paraletProfilerEvent_v1_t message = flowlet(100, 400, 0);
  message.type = PARALET_PROFILE_MESSAGE;
  message.bytes = 8192;
  told_of(message);
  message.receive = 1;
  message.bytes = 100;
  told_of(message);
  const Operation reported = log.report(8).front();
  CHECK(reported.flowlets == 2);
  CHECK(reported.flowlets_ns == 400);
  CHECK(reported.slowest.lane == 3);
  CHECK(reported.slowest.port == 50'003);
  CHECK(reported.slowest.duration_ns == 300);
  CHECK(reported.sent_bytes == 8192);
  CHECK(reported.received_bytes == 100);
}

TEST_CASE("handles of forgotten events and of other kinds are ignored") {
  OperationLog log;
  const Handle operation = log.enqueue(communicator(), all_reduce(0), 0);
  const Handle transfers = log.begin(operation, {.peer = 2, .steps = 1, .send = true}, 1);
  CHECK(log.begin(0, {}, 1) == 0);
  CHECK(log.begin(transfers, {}, 1) == 0);
  CHECK(log.begin_step(operation, 0, 1) == 0);
  CHECK(log.begin_step(transfers, -1, 1) == 0);
  CHECK(log.begin_message(operation, flowlet(1, 2, 3)) == 0);
  for (const Handle wrong : {Handle{0}, ~Handle{0}, Handle{0x12345678'FFFF0001}, operation}) {
    log.waits(wrong, Wait::kGpu, 1);
    log.tell(wrong, flowlet(1, 2, 3));
  }
  log.stop(transfers, 5);
  log.stop(transfers, 6);  // a second time
  CHECK(log.report(8).front().ended_ns == 5);
  for (std::size_t i = 0; i < OperationLog::kOperations; ++i) log.enqueue(communicator(), all_reduce(i), 7);
  CHECK(log.begin(operation, {}, 8) == 0);
}

TEST_CASE("operations under way are never forgotten, and the log takes no more than it has room for") {
  OperationLog log;
  std::vector<Handle> transfers;
  for (std::size_t i = 0; i < OperationLog::kOperations; ++i) {
    transfers.push_back(log.begin(log.enqueue(communicator(), all_reduce(i), 0), {.peer = 2}, 1));
  }
  CHECK(log.enqueue(communicator(), all_reduce(1), 1) == 0);
  CHECK(log.report(8).size() == OperationLog::kOperations);
  log.stop(transfers[5], 2);
  CHECK(log.enqueue(communicator(), all_reduce(2), 3) != 0);
  for (const Handle transfer : transfers) log.stop(transfer, 4);
  const std::vector<Operation> operations = log.report(8);
  REQUIRE(operations.size() == 8);
  CHECK(operations.back().number == OperationLog::kOperations);
}

TEST_CASE("a snapshot is a line and a JSON object whose CRC is right, whatever the names are") {
  OperationLog log;
  log.begin(log.enqueue(communicator("a \"name\"\n\xFF"), all_reduce(9), 0), {.peer = 2}, 1);
  const std::string snapshot = snapshot_of(log.report(8), 5, 1'500'000'000);
  const std::size_t line = snapshot.find('\n');
  const std::string body = snapshot.substr(line + 1);
  const nlohmann::json document = nlohmann::json::parse(body);
  CHECK(snapshot.starts_with("paralet-operations 1 "));
  CHECK(snapshot.substr(0, line).ends_with(" " + std::to_string(body.size())));
  CHECK(document["generation"] == 5);
  CHECK(document["time_s"] == 1.5);
  CHECK(document["operations"][0]["sequence"] == 9);
  CHECK(document["operations"][0]["slowest"].is_null());
}

}  // namespace
}  // namespace paralet::profiler
