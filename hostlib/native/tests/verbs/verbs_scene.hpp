// SPDX-License-Identifier: Apache-2.0
// Two devices over the same fake NIC, and messages between them. Times only bound how long a failing test hangs.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bytes.hpp"
#include "engine/device.hpp"
#include "fake_verbs.hpp"
#include "verbs/verbs_backend.hpp"

namespace paralet::test {

template <typename Condition>
bool eventually(Condition condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

/// Holds a call about a queue pair, from construction until `release`, or destruction.
struct HeldCall {
  HeldCall(fake_verbs::Call call, unsigned before) { fake_verbs::hold_call(call, before); }
  HeldCall(const HeldCall&) = delete;
  HeldCall& operator=(const HeldCall&) = delete;
  ~HeldCall() { fake_verbs::release_call(); }
  static void release() { fake_verbs::release_call(); }
  static bool holds() {
    return eventually([] { return fake_verbs::record().held == 1; });
  }
};

inline DeviceOptions verbs_options(unsigned lanes) {
  DeviceOptions out;
  out.address = fake_verbs::kAddress;
  out.backend = BackendKind::kVerbs;
  out.policy.lanes = lanes;
  return out;
}

/// The memory of a message: host memory that is registered only for it, or a part of a region.
struct Place {
  std::span<std::byte> bytes;
  std::uint32_t rkey = 0;
  std::uint64_t offset = 0;
};

struct VerbsPair {
  explicit VerbsPair(unsigned lanes = 2) : VerbsPair(verbs_options(lanes)) {}
  /// `before` runs when both devices are open, before they connect. The first has the back end that is given.
  explicit VerbsPair(
      const DeviceOptions& options, const std::function<void()>& before = [] {},
      std::unique_ptr<Backend> given = nullptr)
      : one(given ? Device(options, std::move(given)) : Device(options)), two(options) {
    before();
    listener = two.listen();
    to = one.connect(listener->handle);
    REQUIRE(eventually([&] { return to->state != Connection::State::kConnecting; }));
    REQUIRE_MESSAGE(to->state == Connection::State::kOpen, to->error);
    REQUIRE(eventually([&] {
      from = listener->accept();
      return from != nullptr;
    }));
  }

  static std::shared_ptr<Request> submit(Device& device, const std::shared_ptr<Connection>& connection,
                                         Request::Kind kind, const Place& place, std::uint32_t tag = 0) {
    auto request = std::make_shared<Request>();
    request->kind = kind;
    request->connection = connection;
    request->data = place.bytes.data();
    request->length = place.bytes.size();
    request->rkey = place.rkey;
    request->region_offset = place.offset;
    request->tag = tag;
    device.submit(request);
    return request;
  }
  static Request::State end(const std::shared_ptr<Request>& request) {
    static_cast<void>(eventually([&] { return request->state != Request::State::kPending; }));
    return request->state;
  }
  /// Requires success. A failure closes the devices, which still use the caller's buffers.
  void require_done(const std::shared_ptr<Request>& request) {
    if (end(request) == Request::State::kDone) return;
    one.close();
    two.close();
    FAIL("the request did not succeed: " << request->error);
  }
  /// A message from `one` to `two`.
  void check(const Place& out, const Place& in) {
    const auto received = submit(two, from, Request::Kind::kReceive, in);
    const auto sent = submit(one, to, Request::Kind::kSend, out);
    require_done(sent);
    require_done(received);
    CHECK(std::equal(in.bytes.begin(), in.bytes.end(), out.bytes.begin(), out.bytes.end()));
  }
  void check(std::size_t length) {
    Bytes out = random_fill(length, length);
    Bytes in(length);
    check({.bytes = out}, {.bytes = in});
  }

  Device one;
  Device two;
  std::shared_ptr<Listener> listener;
  std::shared_ptr<Connection> to;
  std::shared_ptr<Connection> from;
};

inline VerbsOptions backend_options() {
  VerbsOptions out;
  out.address = fake_verbs::kAddress;
  return out;
}

/// Index of the first call that starts with `beginning`. The test fails when there is none.
inline std::size_t place_of(const std::string& beginning) {
  const auto calls = fake_verbs::record().calls;
  const auto found = std::ranges::find_if(calls, [&](const auto& call) { return call.starts_with(beginning); });
  REQUIRE_MESSAGE(found != calls.end(), beginning);
  return static_cast<std::size_t>(found - calls.begin());
}

inline std::size_t times(const std::string& beginning) {
  const auto calls = fake_verbs::record().calls;
  return static_cast<std::size_t>(
      std::ranges::count_if(calls, [&](const auto& call) { return call.starts_with(beginning); }));
}
inline bool is_open(const Connection& connection) { return connection.state == Connection::State::kOpen; }

}  // namespace paralet::test
