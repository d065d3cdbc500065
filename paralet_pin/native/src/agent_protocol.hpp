// SPDX-License-Identifier: Apache-2.0
// What the library in a program and the agent on its host say to each other, over a Unix stream socket: one request and
// one reply, or none, for each connection. Both are of one build and one machine, so structures go as they are.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "base/clock.hpp"
#include "base/ip_address.hpp"

namespace paralet::pin {

inline constexpr std::uint32_t kMagic = 0x70696E03;  ///< "pin", and the version of these structures

enum class RequestKind : std::uint8_t {
  kAsk,        ///< a port for a flow
  kAskAgain,   ///< another one, since that of flow `id` was not free
  kGiveBack,   ///< flow `id` has ended; no reply
  kSent,       ///< `bytes` of flow `id`; no reply
  kNotPinned,  ///< a flow keeps the kernel's port, because of `why`; no reply
  kMoves,  ///< the first move of one of this process's flows that it was not told; `id` has moved since, to `moved_to`
  kCheck,  ///< all that the agent knows, as JSON; text until the end in place of a reply
  kTried,  ///< connect has been called for flow `id`, which is not connected, or not yet; no reply
};

/// Text that a NUL ends, or the end of the array.
using Text = std::array<char, 48>;
std::string_view view(const Text& text);
/// Cut where it is too long.
Text text_of(std::string_view words);

struct Request {
  std::uint32_t magic = kMagic;
  RequestKind kind = RequestKind::kAsk;
  std::uint8_t tcp = 1;  ///< 0: UDP
  std::uint16_t remote_port = 0;
  IpAddress local;
  IpAddress remote;
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;
  Nanos wait = 0;              ///< how long the program waits for the reply
  std::uint64_t moved_to = 0;  ///< of kMoves: a port
  /// Of kAsk: the thread that connects, by a number that no other thread of the process has at that time. 0: unknown,
  /// or it has another flow still to connect. Its next kAsk tells that its last flow has connected, or will not.
  std::uint64_t thread = 0;
  std::int64_t processor = -1;  ///< of kAsk: on which that thread runs; -1: unknown
  Text what{};
  Text why{};
};
static_assert(std::is_trivially_copyable_v<Request>);
static_assert(sizeof(Request) == 184);  // paralet_pin/check.py

struct Reply {
  std::uint32_t magic = kMagic;
  std::uint16_t port = 0;   ///< 0: none
  std::uint8_t away = 0;    ///< 1: none, because the path service does not answer
  std::uint8_t unused = 0;  ///< 0
  std::uint64_t id = 0;     ///< of the flow
  IpAddress local;          ///< what the port is planned for
};
static_assert(std::is_trivially_copyable_v<Reply>);

}  // namespace paralet::pin
