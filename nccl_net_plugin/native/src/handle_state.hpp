// SPDX-License-Identifier: Apache-2.0
// The 128 bytes that NCCL carries from listen to connect, and passes again to every call of connect. The engine's
// handle fills the front; the back keeps the name of the connect that is under way.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "paralet_nccl_net.h"

namespace paralet::plugin {

using HandleBytes = std::span<std::byte, NCCL_NET_HANDLE_MAXSIZE>;
using Handle = std::array<std::byte, NCCL_NET_HANDLE_MAXSIZE>;

/// The handle as the listener made it, without our state.
Handle listener_handle(HandleBytes handle);
/// The connect that an earlier call has started, nothing when this is the first call. The bytes come from another
/// process, so this is a name to look up, never a pointer.
std::optional<std::uint64_t> pending_connect(HandleBytes handle);
void set_pending_connect(HandleBytes handle, std::uint64_t name);
/// The same handle may serve for another connect.
void clear_pending_connect(HandleBytes handle);

}  // namespace paralet::plugin
