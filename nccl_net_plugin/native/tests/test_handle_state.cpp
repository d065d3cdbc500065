// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>

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

TEST_CASE("the engine's handle leaves room for the state when all its fields have their largest values") {
  const Handle handle = engine_handle();
  CHECK(std::all_of(handle.end() - 16, handle.end(), [](std::byte b) { return b == std::byte{0}; }));
}

}  // namespace
}  // namespace paralet::plugin
