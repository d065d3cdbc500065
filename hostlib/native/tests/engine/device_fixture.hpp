// SPDX-License-Identifier: Apache-2.0
// Devices on addresses of the loopback interface, in one process, over real sockets. Time limits bound how long a test
// may hang, never how fast it must be.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "bytes.hpp"
#include "engine/device.hpp"

namespace paralet::test {

using State = Request::State;

inline constexpr std::uint32_t kA = 0x7F000001;  // 127.0.0.1
inline constexpr std::uint32_t kB = 0x7F000002;
inline constexpr auto kTimeLimit = std::chrono::seconds(20);

/// Waits until `condition` holds. False when the time limit has passed.
template <typename Condition>
bool eventually(Condition condition) {
  const auto until = std::chrono::steady_clock::now() + kTimeLimit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

/// The back end of the devices. Tests that make sense over any of them run with PARALET_TEST_BACKEND=tcp too.
inline BackendKind backend() {
  const char* name = std::getenv("PARALET_TEST_BACKEND");
  return name != nullptr && std::string(name) == to_string(BackendKind::kTcp) ? BackendKind::kTcp : BackendKind::kSoft;
}

/// The shards of the devices, PARALET_TEST_SHARDS.
inline std::uint32_t shards() {
  const char* number = std::getenv("PARALET_TEST_SHARDS");
  return number != nullptr ? static_cast<std::uint32_t>(std::atoi(number)) : 1;
}

/// Marks a test of what only `soft` does.
inline doctest::test_suite of_soft() { return doctest::test_suite("soft"); }

inline DeviceOptions options(const IpAddress& address, unsigned lanes = 4) {
  DeviceOptions out;
  out.backend = backend();
  out.shards = shards();
  out.address = address;
  out.policy.lanes = lanes;
  out.min_timeout = 5 * kMillisecond;
  return out;
}

using ConnectionPtr = std::shared_ptr<Connection>;
using RequestPtr = std::shared_ptr<Request>;

/// A request that owns its memory, because the device of a failed case may use both until it is closed.
struct Message : Request {
  Bytes memory;
};
using MessagePtr = std::shared_ptr<Message>;

inline MessagePtr submit(Device& device, const ConnectionPtr& connection, Request::Kind kind, Bytes memory,
                         std::uint32_t tag = 0) {
  auto message = std::make_shared<Message>();
  message->kind = kind;
  message->connection = connection;
  message->memory = std::move(memory);
  message->data = message->memory.data();
  message->length = message->memory.size();
  message->tag = tag;
  device.submit(message);
  return message;
}

/// The final state; kPending when the time limit has passed.
inline State wait(const RequestPtr& request) {
  static_cast<void>(eventually([&] { return request->state != State::kPending; }));
  return request->state;
}

inline void require_done(const RequestPtr& request) { REQUIRE_MESSAGE(wait(request) == State::kDone, request->error); }

inline bool open(const ConnectionPtr& connection) {
  static_cast<void>(eventually([&] { return connection->state != Connection::State::kConnecting; }));
  return connection->state == Connection::State::kOpen;
}

inline ConnectionPtr accept(Listener& listener) {
  ConnectionPtr connection;
  static_cast<void>(eventually([&] {
    connection = listener.accept();
    return connection != nullptr;
  }));
  REQUIRE(connection);
  return connection;
}

/// One connection between two devices.
struct Joined {
  Joined(Device& connecting, Device& listening)
      : one(connecting), two(listening), listener(listening.listen()), to(connecting.connect(listener->handle)) {
    REQUIRE(open(to));
    from = accept(*listener);
  }
  MessagePtr send(Bytes data, std::uint32_t tag = 0) const {
    return submit(one, to, Request::Kind::kSend, std::move(data), tag);
  }
  MessagePtr receive(Bytes memory, std::uint32_t tag = 0) const {
    return submit(two, from, Request::Kind::kReceive, std::move(memory), tag);
  }
  MessagePtr send_back(Bytes data, std::uint32_t tag = 0) const {
    return submit(two, from, Request::Kind::kSend, std::move(data), tag);
  }
  MessagePtr receive_back(Bytes memory, std::uint32_t tag = 0) const {
    return submit(one, to, Request::Kind::kReceive, std::move(memory), tag);
  }
  /// A message there and one back.
  void check(std::size_t bytes) const {
    const Bytes out = random_fill(bytes, bytes);
    const auto received = receive(Bytes(bytes));
    const auto sent = send(out);
    require_done(sent);
    require_done(received);
    CHECK(received->memory == out);
    const auto returned = receive_back(Bytes(bytes));
    require_done(send_back(out));
    require_done(returned);
    CHECK(returned->memory == out);
  }

  Device& one;
  Device& two;
  std::shared_ptr<Listener> listener;
  ConnectionPtr to;
  ConnectionPtr from;
};

struct DevicePair {
  Device a{options(kA)};
  Device b{options(kB)};
};

/// The error of a request that must fail.
inline std::string error_of(const RequestPtr& request) {
  REQUIRE(wait(request) == State::kFailed);
  return request->error;
}

/// Why a connection to this handle fails.
inline std::string connect_error(Device& device, const std::array<std::byte, handshake::kHandleBytes>& handle) {
  const auto connection = device.connect(handle);
  REQUIRE(eventually([&] { return connection->state == Connection::State::kClosed; }));
  CHECK(connection->failure != Failure::kNone);
  return connection->error;
}

}  // namespace paralet::test
