// SPDX-License-Identifier: Apache-2.0
// The law fixed_window: a constant number of packets in flight, whatever delay, marks and losses say. A path that loses
// packets or queues them is left to loss recovery. It shows what another law gains, and it is what an RDMA NIC without
// congestion control does. Do not use it where flows share links: their queues grow until switches drop packets.
#pragma once

#include "soft/congestion_control.hpp"

namespace paralet {

class FixedWindow final : public CongestionControl {
 public:
  FixedWindow(const CongestionOptions& options, const RoundTrip& /*round_trip*/, std::uint64_t /*seed*/)
      : CongestionControl(options.fixed_window) {}
};

}  // namespace paralet
