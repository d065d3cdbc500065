// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>

#include "engine/handshake.hpp"
#include "handle_state.hpp"

namespace paralet::plugin {
namespace {

Handle engine_handle() {
  handshake::Handle handle{.address = 0x0A000001, .tcp_port = 40000, .device = {}, .listener = 7, .token = {}};
  handle.device.fill(std::byte{0xFF});
  handle.token.fill(std::byte{0xFF});
  return handshake::encode(handle);
}

TEST_CASE("a new handle has no connect in progress") {
  Handle handle = engine_handle();
  CHECK_FALSE(pending_connect(handle).has_value());
  CHECK(listener_handle(handle) == handle);
}

TEST_CASE("the state of a connect stays in the handle, which the engine can still decode") {
  Handle handle = engine_handle();
  const Handle before = handle;
  set_pending_connect(handle, 0x0123456789ABCDEF);
  CHECK(pending_connect(handle) == 0x0123456789ABCDEF);
  CHECK(handle != before);
  CHECK(listener_handle(handle) == before);
  const auto decoded = handshake::decode_handle(handle);
  REQUIRE(decoded.has_value());
  CHECK(decoded->address == 0x0A000001);
  CHECK(decoded->tcp_port == 40000);
  CHECK(decoded->listener == 7);
  clear_pending_connect(handle);
  CHECK(handle == before);
}

TEST_CASE("the longest handle keeps all that it says beside the state of a connect") {
  handshake::Handle four{.address = *parse_address("fd00::1"), .tcp_port = 1, .device = {}, .token = {}, .further = {}};
  for (std::uint16_t i = 2; i <= kMaxMembers; ++i) {
    four.further.push_back({.address = *parse_address("fd00::ffff:ffff:ffff:ff0" + std::to_string(i)), .tcp_port = i});
  }
  const Handle before = handshake::encode(four);
  Handle handle = before;
  set_pending_connect(handle, UINT64_MAX);
  CHECK(listener_handle(handle) == before);
  const auto decoded = handshake::decode_handle(handle);
  REQUIRE(decoded.has_value());
  CHECK(decoded->further.back().address == four.further.back().address);
}

}  // namespace
}  // namespace paralet::plugin
