// SPDX-License-Identifier: Apache-2.0
// What a queue pair is made of: the settings of one, and what those of a device share.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/memory_table.hpp"
#include "backend/work.hpp"
#include "base/clock.hpp"
#include "base/ring.hpp"
#include "soft/congestion_control.hpp"
#include "soft/reassembly.hpp"
#include "wire/wire.hpp"

namespace paralet {

/// The receive buffers that the QPs of a device share (a shared receive queue, IBTA 10.2.9). An empty queue is answered
/// with RNR NAKs.
using ReceiveQueue = Ring<ReceiveBuffer>;  // the last one is in caches

/// What the QPs of a device share. It outlives them.
struct RcQpContext {
  const MemoryTable& memory;
  ReceiveQueue& receive_queue;
  std::vector<Completion>& completions;
  CongestionOptions congestion = {};
  Nanos min_timeout = 5 * kMillisecond;  ///< floor of the retransmission timeout
  Nanos retry_time = 10 * kSecond;       ///< without any progress for this long, a QP fails
};

struct RcQpOptions {
  std::uint32_t qpn = 0;
  std::uint32_t first_psn = 0;
  std::uint32_t remote_qpn = 0;
  std::uint32_t remote_first_psn = 0;
  std::uint32_t path_mtu = 1024;  ///< payload bytes: 256, 512, 1024, 2048 or 4096
  std::uint32_t burst = 1;        ///< packets that cost little more to send together than one alone
  Nanos probe_after = kNever;  ///< floor of the silence after which the oldest packet is sent once before the timeout
  ReassemblyMemory* reassembly = nullptr;  ///< for selective repeat, which both ends use; nullptr: go-back-N
  bool host_delays = false;                ///< acknowledgements of both ends say how long the newest packet has waited
  bool mark_counts = false;  ///< acknowledgements of both ends count the packets that came with a congestion mark

  [[nodiscard]] bool selective_repeat() const { return reassembly != nullptr; }
};

/// What the two halves of a queue pair share. It outlives them.
struct RcQpShared {
  RcQpOptions options;
  RcQpContext& device;
  QpCounters counters = {};
};

/// One packet to put on the wire: header, then payload, then pad zero bytes, then the ICRC.
struct OutgoingPacket {
  wire::Header header;
  std::span<const std::byte> payload;
  std::uint8_t pad = 0;
};

}  // namespace paralet
