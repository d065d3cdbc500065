// SPDX-License-Identifier: Apache-2.0
// Devices on addresses of the loopback interface, in one process, over real sockets. Time limits bound how long a test
// may hang, never how fast it must be.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

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

inline DeviceOptions options(const IpAddress& address, unsigned lanes = 4) {
  DeviceOptions out;
  out.address = address;
  out.policy.lanes = lanes;
  out.min_timeout = 5 * kMillisecond;
  return out;
}

using ConnectionPtr = std::shared_ptr<Connection>;
using RequestPtr = std::shared_ptr<Request>;

inline RequestPtr submit(Device& device, const ConnectionPtr& connection, Request::Kind kind,
                         std::span<std::byte> memory, std::uint32_t tag = 0) {
  auto request = std::make_shared<Request>();
  request->kind = kind;
  request->connection = connection;
  request->data = memory.data();
  request->length = memory.size();
  request->tag = tag;
  device.submit(request);
  return request;
}

/// The final state; kPending when the time limit has passed.
inline State wait(const RequestPtr& request) {
  static_cast<void>(eventually([&] { return request->state != State::kPending; }));
  return request->state;
}

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
  RequestPtr send(Bytes& data, std::uint32_t tag = 0) const { return submit(one, to, Request::Kind::kSend, data, tag); }
  RequestPtr receive(Bytes& data, std::uint32_t tag = 0) const {
    return submit(two, from, Request::Kind::kReceive, data, tag);
  }
  RequestPtr send_back(Bytes& data, std::uint32_t tag = 0) const {
    return submit(two, from, Request::Kind::kSend, data, tag);
  }
  RequestPtr receive_back(Bytes& data, std::uint32_t tag = 0) const {
    return submit(one, to, Request::Kind::kReceive, data, tag);
  }
  /// Requires success. A failure closes the devices, which still use the caller's buffers.
  void require_done(const RequestPtr& request) const {
    if (wait(request) == State::kDone) return;
    one.close();
    two.close();
    FAIL("the request did not succeed: " << request->error);
  }
  /// A message there and one back.
  void check(std::size_t bytes) const {
    Bytes out = random_fill(bytes, bytes);
    Bytes in(bytes);
    const auto received = receive(in);
    const auto sent = send(out);
    require_done(sent);
    require_done(received);
    CHECK(in == out);
    Bytes back(bytes);
    const auto returned = receive_back(back);
    require_done(send_back(in));
    require_done(returned);
    CHECK(back == out);
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
