// SPDX-License-Identifier: Apache-2.0
// One exchange of equal messages between two processes, over a back end or over TCP sockets. The processes may be in
// two network namespaces. Each side of a pair has one thread that calls, as a rank has a proxy thread, and its own
// cores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "base/ip_address.hpp"

namespace paralet::bench {

/// A value of PARALET_BACKEND.
struct BackEnd {
  std::string name;
};
/// One TCP connection per direction, with calls that block.
struct Stream {};
/// TCP as NCCL's Socket transport uses it: each direction has threads x per_thread connections (NCCL_SOCKET_NTHREADS,
/// NCCL_NSOCKS_PERTHREAD), and messages are cut into parts of at least 64 KiB for them. With 0 threads the caller moves
/// all data over one connection, as is NCCL's default outside the clouds of Google and Amazon.
struct Sockets {
  unsigned threads = 0;
  unsigned per_thread = 1;
};
using Transport = std::variant<BackEnd, Stream, Sockets>;

struct FlowCase {
  Transport transport;
  IpAddress near = IpAddress(0x7F000001);  // 127.0.0.1
  IpAddress far = IpAddress(0x7F000002);
  std::string far_namespace;  ///< file of the far process's network namespace; empty: this process's
  std::uint64_t message_bytes = 1 << 20;
  std::uint64_t total_bytes = 256 << 20;  ///< of each pair in each direction, about
  unsigned ahead = 16;                    ///< receives posted ahead; up to 16 sends are in progress
  unsigned shards = 1;                    ///< of each device
  unsigned cores = 1;                     ///< of each side of a pair, as far as there are so many
  unsigned pairs = 1;                     ///< pairs of threads that exchange messages at the same time
  bool both_ways = false;                 ///< each thread sends and receives
};

/// Sums over pairs and directions. Processor time includes all threads, user and kernel mode, and threads that poll.
struct FlowFigures {
  double gbps = 0;
  double near_ns_per_byte = 0;
  double far_ns_per_byte = 0;
};

/// Throws std::invalid_argument for an unknown back end, and what sockets and devices throw.
FlowFigures flow(const FlowCase& c);

/// "soft", "stream", "sockets:4x1" (threads x sockets of each). Throws std::invalid_argument.
Transport parse_transport(const std::string& text);

}  // namespace paralet::bench
