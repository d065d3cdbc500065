// SPDX-License-Identifier: Apache-2.0
#include "handle_state.hpp"

#include <algorithm>
#include <cstring>

#include "engine/handshake.hpp"

namespace paralet::plugin {
namespace {

static_assert(handshake::kHandleBytes == NCCL_NET_HANDLE_MAXSIZE);

/// At the end of the engine's handle, which is padding (docs/protocol.md).
using Name = std::uint64_t;
constexpr std::size_t kOffset = NCCL_NET_HANDLE_MAXSIZE - sizeof(Name);

}  // namespace

Handle listener_handle(HandleBytes handle) {
  Handle out{};
  std::ranges::copy(handle, out.begin());
  clear_pending_connect(out);
  return out;
}

std::optional<std::uint64_t> pending_connect(HandleBytes handle) {
  Name name = 0;
  std::memcpy(&name, handle.subspan<kOffset>().data(), sizeof name);
  return name != 0 ? std::optional(name) : std::nullopt;
}

void set_pending_connect(HandleBytes handle, std::uint64_t name) {
  std::memcpy(handle.subspan<kOffset>().data(), &name, sizeof name);
}

void clear_pending_connect(HandleBytes handle) { set_pending_connect(handle, 0); }

}  // namespace paralet::plugin
