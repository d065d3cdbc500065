// SPDX-License-Identifier: Apache-2.0
// One reliable connection (RC) queue pair as a state machine without I/O: packets in, packets out, time as an argument.
// IBTA specification volume 1, sections 9.7 (reliable service) and 9.9 (error detection). Its two halves do not know
// each other: the requester sends our requests, the responder takes the peer's.
#pragma once

#include <span>

#include "soft/rc_qp_options.hpp"
#include "soft/requester.hpp"
#include "soft/responder.hpp"

namespace paralet {

class RcQp {
 public:
  RcQp(const RcQpOptions& options, RcQpContext& context)
      : shared_{.options = options, .device = context}, requester_(shared_), responder_(shared_) {}
  RcQp(const RcQp&) = delete;  // the halves know where the shared part is
  RcQp& operator=(const RcQp&) = delete;

  [[nodiscard]] Requester& requester() { return requester_; }
  [[nodiscard]] const Requester& requester() const { return requester_; }
  [[nodiscard]] Responder& responder() { return responder_; }
  [[nodiscard]] const Responder& responder() const { return responder_; }

  /// Sends and accepts nothing from now on, and keeps the requests. Returns the messages that have arrived so far.
  std::uint32_t stop() {
    requester_.stop();
    return responder_.stop();
  }
  /// Responder::placement_target. A failed QP places nothing.
  [[nodiscard]] std::span<std::byte> placement_target() const {
    return requester_.failed() ? std::span<std::byte>() : responder_.placement_target();
  }
  [[nodiscard]] const RcQpOptions& options() const { return shared_.options; }
  [[nodiscard]] const QpCounters& counters() const { return shared_.counters; }

 private:
  RcQpShared shared_;
  Requester requester_;
  Responder responder_;
};

}  // namespace paralet
