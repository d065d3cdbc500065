// SPDX-License-Identifier: Apache-2.0
// The seam below the engine: what a device must be able to do. `soft` speaks RoCEv2 over UDP sockets; a back end over
// libibverbs fits behind the same calls. All calls come from the engine's progress thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "clock.hpp"
#include "rc_qp.hpp"

namespace paralet {

/// How a QP's UDP source port came to be.
enum class PortMethod : std::uint8_t { kSocket, kFlowLabel, kModifyQp };
const char* to_string(PortMethod method);

struct QpIdentity {
  std::uint32_t qpn = 0;
  std::uint32_t first_psn = 0;
};

struct RemoteQp {
  std::uint32_t address = 0;   ///< IPv4, host byte order
  std::uint16_t udp_port = 0;  ///< where the peer receives; 4791 unless two processes share its address
  std::uint32_t qpn = 0;
  std::uint32_t first_psn = 0;
  std::uint32_t path_mtu = 0;  ///< payload bytes
};

struct QpStatistics {
  RcQpCounters counters;
  std::uint16_t port = 0;
  Nanos smoothed_rtt = 0;
  Nanos min_rtt = 0;
  double window = 0;  ///< packets
  bool all_acknowledged = true;
};

/// What the scheduler of flowlets asks of a QP.
struct PathEstimate {
  Nanos smoothed_rtt = 0;  ///< 0 without a recent sample
  double window = 1;       ///< packets
  bool hungry = false;     ///< all that was posted has left and the window has room; false where that is unknown
};

/// Packets that were not for anyone, by reason.
struct Discards {
  std::uint64_t malformed = 0;
  std::uint64_t icrc = 0;
  std::uint64_t unknown_qp = 0;
  std::uint64_t wrong_source = 0;
  std::uint64_t send_errors = 0;
  std::uint64_t injected = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  [[nodiscard]] virtual std::uint16_t udp_port() const = 0;
  [[nodiscard]] virtual std::uint32_t max_path_mtu() const = 0;
  virtual std::uint32_t register_memory(std::byte* base, std::uint64_t length) = 0;
  virtual void deregister_memory(std::uint32_t rkey) = 0;

  virtual QpIdentity create_qp() = 0;
  /// False when the source port cannot be had (another program holds it); the QP stays unconnected.
  virtual bool connect_qp(std::uint32_t qpn, const RemoteQp& remote, std::uint16_t source_port) = 0;
  /// Changes the source port. False when it cannot be had; the old one stays.
  virtual bool set_port(std::uint32_t qpn, std::uint16_t source_port) = 0;
  [[nodiscard]] virtual PortMethod port_method() const = 0;
  virtual void fail_qp(std::uint32_t qpn) = 0;
  virtual void destroy_qp(std::uint32_t qpn) = 0;
  virtual void post(std::uint32_t qpn, const WorkRequest& request) = 0;
  virtual void post_receive(const ReceiveBuffer& buffer) = 0;
  [[nodiscard]] virtual PathEstimate estimate(std::uint32_t qpn) const = 0;
  [[nodiscard]] virtual QpStatistics statistics(std::uint32_t qpn) const = 0;
  [[nodiscard]] virtual Discards discards() const = 0;

  /// Whether flowlets posted now would soon leave. While it is false, those that wait are better placed later, when
  /// more is known of the lanes, and leave in the order of their messages.
  [[nodiscard]] virtual bool wants_work(Nanos now) const = 0;
  /// Moves packets; finished work is appended to `completions`. True when anything was done.
  virtual bool progress(Nanos now, std::vector<Completion>& completions) = 0;
  /// When progress has something to do even if nothing arrives.
  [[nodiscard]] virtual Nanos deadline(Nanos now) const = 0;
  /// Readable when something arrived.
  [[nodiscard]] virtual int event_fd() const = 0;
};

}  // namespace paralet
