// SPDX-License-Identifier: Apache-2.0
// The seam below the engine: what a device must be able to do. `soft` speaks RoCEv2 over UDP sockets; a back end over
// libibverbs fits behind the same calls. One call at a time, from the thread that holds the device's progress lock.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/work.hpp"
#include "base/clock.hpp"
#include "base/errors.hpp"

namespace paralet {

/// How a QP's UDP source port came to be. kNone: the driver chooses, and nobody can tell.
enum class PortMethod : std::uint8_t { kSocket, kFlowLabel, kModifyQp, kNone };
const char* to_string(PortMethod method);

struct QpIdentity {
  std::uint32_t qpn = 0;
  std::uint32_t first_psn = 0;
};

/// Enhanced Connection Establishment: what a vendor's NICs agree on, such as selective repeat (rdma-core,
/// ibv_query_ece(3)). Zeros: nothing is offered.
struct Ece {
  std::uint32_t vendor_id = 0;
  std::uint32_t options = 0;
  std::uint32_t comp_mask = 0;
  bool operator==(const Ece&) const = default;
};

/// What `soft` numbers its IPv4 packets up to; the ICRC covers that number, and a UDP socket does not show it.
inline constexpr std::uint16_t kDefaultMaxIpId = 63;

struct RemoteQp {
  std::uint32_t address = 0;   ///< IPv4, host byte order
  std::uint16_t udp_port = 0;  ///< where the peer receives; 4791 unless two processes share its address
  std::uint32_t qpn = 0;
  std::uint32_t first_psn = 0;
  std::uint32_t path_mtu = 0;                 ///< payload bytes
  std::uint16_t max_ip_id = kDefaultMaxIpId;  ///< highest IPv4 identification of its packets
  Ece ece;
};

struct QpStatistics {
  QpCounters counters;
  std::uint16_t port = 0;
  Nanos smoothed_rtt = 0;
  Nanos min_rtt = 0;
  double window = 0;  ///< packets
  bool all_acknowledged = true;
};

/// What the scheduler of flowlets asks of a QP.
struct PathEstimate {
  Nanos smoothed_rtt = 0;      ///< 0 without a recent sample
  Nanos fresh_until = kNever;  ///< if nothing is sent meanwhile
  double window = 1;           ///< packets
  bool hungry = false;         ///< all that was posted has left and the window has room; false where that is unknown
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

/// Memory that a driver shares with other drivers.
struct DmaBuf {
  int fd = -1;
  std::uint64_t offset = 0;  ///< where in it the region begins
};

class Backend {
 public:
  virtual ~Backend() = default;

  [[nodiscard]] virtual std::uint16_t udp_port() const = 0;
  [[nodiscard]] virtual std::uint32_t max_path_mtu() const = 0;
  /// Memory that peers may write to; returns the rkey, never 0. Throws DeviceError.
  virtual std::uint32_t register_memory(std::byte* base, std::uint64_t length) = 0;
  /// Memory that is only read, by sends; what it returns is for WorkRequest::memory and deregister_memory. 0 where
  /// nothing has to be registered. Throws DeviceError.
  virtual std::uint32_t register_source(const std::byte* base, std::uint64_t length) {
    static_cast<void>(base);
    static_cast<void>(length);
    return 0;
  }
  /// Memory of another device, such as a GPU, that no processor may touch: by the dma-buf that its driver exports, or,
  /// without one, by its address, where a module of the kernel knows that (nvidia_peermem). Throws DeviceError.
  virtual std::uint32_t register_device_memory(std::byte* base, std::uint64_t length, std::optional<DmaBuf> dmabuf) {
    static_cast<void>(base), static_cast<void>(length), static_cast<void>(dmabuf);
    throw DeviceError("this back end takes host memory only");
  }
  /// For such memory: what peers have written to the region is in its place when the completion comes, of kind kFenced
  /// with this cookie. Throws DeviceError.
  virtual void post_fence(std::uint32_t rkey, std::uint64_t offset, std::uint64_t cookie) {
    static_cast<void>(rkey), static_cast<void>(offset), static_cast<void>(cookie);
    throw DeviceError("this back end takes host memory only");
  }
  /// What peers add to an offset into the region to address it on the wire.
  [[nodiscard]] virtual std::uint64_t remote_address(std::uint32_t rkey) const {
    static_cast<void>(rkey);
    return 0;
  }
  virtual void deregister_memory(std::uint32_t rkey) = 0;
  /// The memory is the caller's again, but a peer may still send to it and must not be refused, which would end the QPs
  /// that its other messages use. deregister_memory follows. A back end that cannot take and drop data refuses.
  virtual void retire_memory(std::uint32_t rkey) { deregister_memory(rkey); }

  virtual QpIdentity create_qp() = 0;
  /// What a QP offers before it is connected, and what was agreed on afterwards.
  [[nodiscard]] virtual Ece ece(std::uint32_t qpn) const {
    static_cast<void>(qpn);
    return {};
  }
  /// Highest IPv4 identification of the packets that leave: peers that cannot see it must know.
  [[nodiscard]] virtual std::uint16_t max_ip_id() const { return kDefaultMaxIpId; }
  /// False when the source port cannot be had (another program holds it); the QP stays unconnected. Throws DeviceError
  /// when no port can be had.
  virtual bool connect_qp(std::uint32_t qpn, const RemoteQp& remote, std::uint16_t source_port) = 0;
  /// Changes the source port. False when it cannot be had; the old one stays.
  virtual bool set_port(std::uint32_t qpn, std::uint16_t source_port) = 0;
  [[nodiscard]] virtual PortMethod port_method() const = 0;
  /// What this QP has in flight was lost with its path: it goes again at once, where that is ours to say.
  virtual void path_changed(std::uint32_t qpn, Nanos now) {
    static_cast<void>(qpn);
    static_cast<void>(now);
  }
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
  /// Whether a WRITE of so many bytes costs less with its end in a SEND behind it than with immediate data.
  [[nodiscard]] virtual bool ends_apart(std::uint64_t bytes, std::uint32_t path_mtu) const {
    static_cast<void>(bytes), static_cast<void>(path_mtu);
    return false;
  }
  /// Takes what arrived and serves timers; finished work is appended to `completions`. True when anything was done.
  virtual bool progress(Nanos now, std::vector<Completion>& completions) = 0;
  /// Sends what was posted, as far as it may leave now. True when anything left.
  virtual bool flush(Nanos now) = 0;
  /// Sends what was kept back to go together with more (acknowledgements): comes before sleeping.
  virtual void settle(Nanos now) = 0;
  /// When progress, flush or settle has something to do even if nothing arrives.
  [[nodiscard]] virtual Nanos deadline(Nanos now) const = 0;
  /// Readable when something arrived.
  [[nodiscard]] virtual int event_fd() const = 0;
};

}  // namespace paralet
