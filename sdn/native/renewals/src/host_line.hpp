// SPDX-License-Identifier: Apache-2.0
// The lines that hosts say all the time: releases, announcements and pings (docs/path-service.md has the protocol).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>

namespace paralet::renewals {

inline constexpr std::uint16_t kRocePort = 4791;  // which messages may leave out

struct Release {
  std::int64_t id = 0;
};

/// Its texts are views of the line.
struct Announce {
  std::int64_t id = 0;
  std::string_view peer;
  std::int64_t bytes = 0;
  std::string_view job;
  std::uint16_t peer_port = 0;
};

struct Ping {
  std::int64_t nonce = 0;
};

using HostLine = std::variant<Release, Announce, Ping>;

/// The message in a line without its newline. None for other messages and for what is no message, and also for lines in
/// a form that hosts do not use: with escapes, characters beyond ASCII, unknown keys, repeated keys, or a `port`.
/// Whatever it reads, `sdn.path_service.messages` reads as the same message.
std::optional<HostLine> read_line(std::string_view line);

}  // namespace paralet::renewals
