// SPDX-License-Identifier: Apache-2.0
// The 128-byte handle that NCCL carries from listen to connect and passes to every call of connect. The engine's handle
// is at the front; the last 8 bytes hold the name of the connect in progress, 0 without one.
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

/// The handle as the listener made it, without the name.
Handle listener_handle(HandleBytes handle);
/// The name of the connect that an earlier call has started; nothing in the first call. The bytes come from another
/// process, so this is a name to look up, never a pointer.
std::optional<std::uint64_t> pending_connect(HandleBytes handle);
void set_pending_connect(HandleBytes handle, std::uint64_t name);
/// Allows another connect with the same handle.
void clear_pending_connect(HandleBytes handle);

}  // namespace paralet::plugin
