// SPDX-License-Identifier: Apache-2.0
// A back end (PARALET_BACKEND) between two processes on loopback, compared with one plain TCP stream: same messages,
// same buffers, no Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace paralet::bench {

/// Processor time includes user and kernel mode of all threads, and the waiting time of callers that poll.
struct Throughput {
  double gbps = 0;
  double sender_ns_per_byte = 0;
  double receiver_ns_per_byte = 0;
};

Throughput our_throughput(std::uint64_t message_bytes, const std::string& back_end);
Throughput tcp_throughput(std::uint64_t message_bytes);
/// Median half round trip of a ping-pong, in microseconds, with this number of receives posted ahead.
double our_latency_us(std::uint64_t message_bytes, std::size_t ahead, const std::string& back_end);
/// The same over one TCP connection for both directions, or over one for each, as lanes and NCCL's Socket transport
/// have. With one for each, TCP acknowledges every short message in a segment of its own.
double tcp_latency_us(std::uint64_t message_bytes, unsigned connections);

}  // namespace paralet::bench
