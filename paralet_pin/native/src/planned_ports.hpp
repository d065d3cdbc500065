// SPDX-License-Identifier: Apache-2.0
// The seam between what catches a program's calls (sockets, verbs) and what knows which source port leads where.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.hpp"
#include "base/ip_address.hpp"

namespace paralet::pin {

enum class Protocol : std::uint8_t { kTcp, kUdp };

/// One direction of a connection, before its source port is known. RoCEv2 is kUdp to port 4791.
struct Flow {
  Protocol protocol = Protocol::kTcp;
  IpAddress local;                ///< :: where the routing table has still to choose it
  IpAddress remote;               ///< who receives
  std::uint16_t remote_port = 0;  ///< where it receives
  /// Bytes that are known to follow, 0: unknown. Queue pairs, whose bytes nobody counts, declare an elephant.
  std::uint64_t declared_bytes = 0;
  std::string what;  ///< for people, at most 47 bytes: "socket 12", "queue pair 0x1a of mlx5_0"
};

/// A source port that a flow may use until it is given back.
struct Planned {
  std::uint64_t id = 0;  ///< of the flow, never 0, never used twice by a process
  IpAddress local;       ///< the address that the port is planned for
  std::uint16_t port = 0;
};

/// Any thread may call, also in a forked child. No call throws, blocks signals, writes to stdout or keeps a descriptor
/// that the program could close.
class PlannedPorts {
 public:
  virtual ~PlannedPorts() = default;

  /// A port for a flow that is about to start. Nothing when none is known by `deadline` (base/clock.hpp): the flow then
  /// starts as if nothing were loaded. `errno` is kept.
  virtual std::optional<Planned> ask(const Flow& flow, Nanos deadline) = 0;
  /// Another port for a flow whose port was not free. It ends what was planned for `id`.
  virtual std::optional<Planned> ask_again(std::uint64_t id, Nanos deadline) = 0;
  /// The flow has ended. One that a process leaves behind ends with it.
  virtual void give_back(std::uint64_t id) = 0;
  /// `bytes` have been sent on the flow since the last call. Not needed for TCP, whose bytes the kernel counts.
  virtual void sent(std::uint64_t id, std::uint64_t bytes) = 0;
  /// Tells `paralet pin --check` that a flow has no planned port, and why: one short clause.
  virtual void not_pinned(const Flow& flow, std::string_view why) = 0;
  /// `moved` is called with a flow's id and new port when the plan moves it, and says whether the flow has it. The
  /// caller is a thread of the library, which starts with the first call of this function and never in a forked child.
  /// `moved` may call this object.
  virtual void on_move(std::function<bool(std::uint64_t id, std::uint16_t port)> moved) = 0;
};

/// That of this process; nullptr where nothing is to be pinned: a setuid program, or no agent is named.
PlannedPorts* planned_ports();

}  // namespace paralet::pin
