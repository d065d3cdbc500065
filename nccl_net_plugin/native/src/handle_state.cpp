// SPDX-License-Identifier: Apache-2.0
#include "handle_state.hpp"

#include <algorithm>
#include <cstring>

#include "engine/handshake.hpp"

namespace paralet::plugin {
namespace {

static_assert(handshake::kHandleBytes == NCCL_NET_HANDLE_MAXSIZE);

/// Uses the end of the engine's handle, which is padding (docs/protocol.md).
struct State {
  std::uint64_t mark = 0;
  std::uint64_t name = 0;
};
constexpr std::size_t kStateOffset = NCCL_NET_HANDLE_MAXSIZE - sizeof(State);
constexpr std::uint64_t kMark = 0x434E4E4F434C5250;  // "PRLCONNC"

void write(HandleBytes handle, const State& state) {
  std::memcpy(handle.subspan<kStateOffset>().data(), &state, sizeof state);
}

}  // namespace

Handle listener_handle(HandleBytes handle) {
  Handle out{};
  std::ranges::copy(handle, out.begin());
  clear_pending_connect(out);
  return out;
}

std::optional<std::uint64_t> pending_connect(HandleBytes handle) {
  State state;
  std::memcpy(&state, handle.subspan<kStateOffset>().data(), sizeof state);
  return state.mark == kMark ? std::optional(state.name) : std::nullopt;
}

void set_pending_connect(HandleBytes handle, std::uint64_t name) { write(handle, {.mark = kMark, .name = name}); }

void clear_pending_connect(HandleBytes handle) { write(handle, {}); }

}  // namespace paralet::plugin
