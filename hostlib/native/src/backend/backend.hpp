// SPDX-License-Identifier: Apache-2.0
// The interface between the engine and what moves packets. `soft` implements RoCEv2 over UDP sockets, `tcp` uses TCP
// connections, `verbs` a NIC through libibverbs. Calls come one at a time, from the thread that holds the device's
// progress lock, except where registers_concurrently and sets_up_concurrently say more. A back end runs its own slow
// calls on a thread of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/work.hpp"
#include "base/clock.hpp"
#include "base/errors.hpp"
#include "base/ip_address.hpp"

namespace paralet {

/// How the source port of a QP is set. kNone: the driver chooses it and does not report it.
enum class PortMethod : std::uint8_t { kSocket, kFlowLabel, kModifyQp, kNone };
const char* to_string(PortMethod method);

/// The answer to a change of a QP's source port. kStarted: a completion kPortChanged follows.
enum class PortChange : std::uint8_t { kRefused, kDone, kStarted };

/// NICs that a fused back end has as members, at most: NCCL fuses as many (NCCL_NET_MAX_DEVS_PER_NIC of net_v9.h).
inline constexpr unsigned kMaxMembers = 4;
/// The QPN of a fused back end names the QP's member in its upper eight bits. Of others these are 0.
constexpr unsigned member_of(std::uint32_t qpn) { return qpn >> 24; }

/// Shards of a back end that moves packets on several cores, at most.
inline constexpr unsigned kMaxShards = 16;
/// The shard that gave a QPN, of `shards`.
constexpr std::size_t shard_of(std::uint32_t qpn, std::size_t shards) { return (qpn & 0xFFFFFF) % shards; }
/// The QPNs that one shard of several may give.
struct QpnShare {
  unsigned shard = 0;
  unsigned shards = 1;
};
/// An unpredictable QPN of the share, of 24 bits.
std::uint32_t random_qpn(const QpnShare& share);

struct QpIdentity {
  std::uint32_t qpn = 0;
  std::uint32_t first_psn = 0;  ///< of `tcp`, which has no PSNs: 32 random bits that the peer shows
};

/// Enhanced Connection Establishment: options that two NICs of a vendor agree on, such as selective repeat (rdma-core,
/// ibv_query_ece(3)). All zeros: no options.
struct Ece {
  std::uint32_t vendor_id = 0;
  std::uint32_t options = 0;
  std::uint32_t comp_mask = 0;
  bool operator==(const Ece&) const = default;
};
/// The vendor of QPs of the back end `soft`, "PLET", and of `tcp`, "PLTC".
inline constexpr std::uint32_t kSoftVendor = 0x504C4554;
inline constexpr std::uint32_t kTcpVendor = 0x504C5443;

/// The option of both that the engine adds: short messages may go eagerly (engine/eager.hpp).
inline constexpr std::uint32_t kEagerMessages = 8;
/// The option of `tcp` that the engine adds: the welcome may have fewer QPs than the hello.
inline constexpr std::uint32_t kFewerLanes = 32;
/// The option of both that the engine adds to kEagerMessages: a short message that lacks a credit waits for it, and the
/// receiver notices when none would come.
inline constexpr std::uint32_t kCreditWaits = 64;

/// What lanes are. Only devices of one kind can be peers.
enum class Transport : std::uint8_t { kRoce, kTcp };
constexpr Transport transport_of(const Ece& ece) {
  return ece.vendor_id == kTcpVendor ? Transport::kTcp : Transport::kRoce;
}

/// The highest IPv4 identification of the packets of `soft`, and of a peer that does not announce one. The ICRC covers
/// the identification, which a UDP socket does not show.
inline constexpr std::uint16_t kDefaultMaxIpId = 63;

struct RemoteQp {
  IpAddress address;
  std::uint16_t udp_port = 0;  ///< destination port; 4791 unless two processes share the peer's address; of `tcp` its
                               ///< TCP port
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
  std::uint64_t acknowledged_packets = 0;  ///< 0 where the back end cannot see them
  bool busy = false;                       ///< long requests are on their way; false where byte_time is 0
  /// `smoothed_rtt` without what the host added by looking late, 0: unknown. Nothing: the back end cannot tell.
  std::optional<Nanos> path_rtt;
  double byte_time = 0;  ///< nanoseconds per payload byte of long requests, 0: unknown, or included in the round trip
};

/// The state of a QP as the scheduler of flowlets sees it.
struct PathEstimate {
  Nanos smoothed_rtt = 0;      ///< 0 without a recent sample
  Nanos fresh_until = kNever;  ///< until when the sample counts as recent, if nothing is sent meanwhile
  float window = 1;            ///< packets
  bool app_limited = false;    ///< everything posted has been sent and the window has room; false where unknown
  Nanos ready_at = 0;          ///< when a packet that is posted now may leave, where the window is below one packet;
                               ///< kNever: an acknowledgement comes first
};

/// Discarded packets, by reason.
struct Discards {
#define DISCARD_COUNTER(name, meaning) std::uint64_t name = 0;
#include "base/counters.inc"

  Discards& operator+=(const Discards& other) {
#define DISCARD_COUNTER(name, meaning) name += other.name;
#include "base/counters.inc"
    return *this;
  }
};

/// Memory that a driver shares with other drivers (Linux dma-buf).
struct DmaBuf {
  int fd = -1;
  std::uint64_t offset = 0;  ///< of the region, in bytes
};

class Backend {
 public:
  virtual ~Backend() = default;

  /// NICs that act as this one: of a fused back end its members, 1 to kMaxMembers.
  [[nodiscard]] virtual unsigned members() const { return 1; }
  [[nodiscard]] virtual const Backend& member(unsigned index) const {
    static_cast<void>(index);
    return *this;
  }
  [[nodiscard]] virtual Transport transport() const { return Transport::kRoce; }
  /// Where QPs receive; of `tcp` a TCP port.
  [[nodiscard]] virtual std::uint16_t udp_port() const = 0;
  /// Back ends that act as this one, each on a core of its own.
  [[nodiscard]] virtual unsigned shards() const { return 1; }
  /// Where QPs of the shards 1, 2, .. receive.
  [[nodiscard]] virtual std::vector<std::uint16_t> further_ports() const { return {}; }
  [[nodiscard]] virtual std::uint32_t max_path_mtu() const = 0;
  /// The largest path MTU on the route from this member to an address, as far as the host knows.
  [[nodiscard]] virtual std::uint32_t path_mtu_to(unsigned member, const IpAddress& remote) const {
    static_cast<void>(member), static_cast<void>(remote);
    return max_path_mtu();
  }
  /// Of the NIC's port, in bits per second; 0 where the back end cannot tell.
  [[nodiscard]] virtual double port_rate_bps() const { return 0; }
  /// Memory that peers may write to; returns the rkey, never 0. Throws DeviceError.
  virtual std::uint32_t register_memory(std::byte* base, std::uint64_t length) = 0;
  /// The same under the rkey that the first shard of a device has given it.
  virtual void register_as(std::uint32_t rkey, std::byte* base, std::uint64_t length) {
    static_cast<void>(rkey), static_cast<void>(base), static_cast<void>(length);
    throw DeviceError("this back end has no shards");
  }
  /// Memory that only sends read. Returns the value for WorkRequest::memory and deregister_memory, 0 where nothing has
  /// to be registered. Throws DeviceError.
  virtual std::uint32_t register_source(const std::byte* base, std::uint64_t length) {
    static_cast<void>(base);
    static_cast<void>(length);
    return 0;
  }
  /// Memory of another device, such as a GPU, that no processor may touch. It is named by the dma-buf that its driver
  /// exports, or else by its address, where a kernel module (nvidia_peermem) resolves it. Throws DeviceError.
  virtual std::uint32_t register_device_memory(std::byte* base, std::uint64_t length, std::optional<DmaBuf> dmabuf) {
    static_cast<void>(base), static_cast<void>(length), static_cast<void>(dmabuf);
    throw DeviceError("this back end takes host memory only");
  }
  /// For such memory: all data that peers wrote to the region before is visible to its device when the completion of
  /// kind kFenced with this cookie comes. Throws DeviceError where the back end takes host memory only.
  virtual void post_fence(std::uint32_t rkey, std::uint64_t offset, std::uint64_t cookie) {
    static_cast<void>(rkey), static_cast<void>(offset), static_cast<void>(cookie);
    throw DeviceError("this back end takes host memory only");
  }
  /// Base address: peers add it to an offset into the region to get the address on the wire.
  [[nodiscard]] virtual std::uint64_t remote_address(std::uint32_t rkey) const {
    static_cast<void>(rkey);
    return 0;
  }
  /// The rkey on the wire of a registration.
  [[nodiscard]] virtual std::uint32_t remote_key(std::uint32_t rkey) const { return rkey; }
  /// The same where peers write through this member.
  [[nodiscard]] virtual std::uint32_t remote_key_on(unsigned member, std::uint32_t rkey) const {
    static_cast<void>(member);
    return remote_key(rkey);
  }
  /// Whether any thread may call register_* and deregister_memory at any time, without the progress lock. For a NIC
  /// they take long.
  [[nodiscard]] virtual bool registers_concurrently() const { return false; }
  virtual void deregister_memory(std::uint32_t rkey) = 0;
  /// Returns the memory to the caller while a peer may still write to it. The back end drops that data, because a NAK
  /// would end the QPs that the peer's other messages use. A back end that cannot drop data deregisters the memory.
  /// deregister_memory follows.
  virtual void retire_memory(std::uint32_t rkey) { deregister_memory(rkey); }

  /// Whether another thread may set QPs up without the progress lock: create a QP, then ask for its options (ece) and
  /// connect it, before any other call but destroy_qp names it. For a NIC these calls take long.
  [[nodiscard]] virtual bool sets_up_concurrently() const { return false; }
  /// Throws DeviceError when there are no more QPs.
  virtual QpIdentity create_qp() = 0;
  /// The same on this member, and on the shard of this lane.
  virtual QpIdentity create_qp_on(unsigned member, unsigned lane) {
    static_cast<void>(member), static_cast<void>(lane);
    return create_qp();
  }
  /// Before the QP is connected: what it offers. Afterwards: what both sides agreed on.
  [[nodiscard]] virtual Ece ece(std::uint32_t qpn) const {
    static_cast<void>(qpn);
    return {};
  }
  /// Highest IPv4 identification of the packets sent. Peers over UDP sockets, which cannot see it, need to know.
  [[nodiscard]] virtual std::uint16_t max_ip_id() const { return kDefaultMaxIpId; }
  /// False when the source port is not available, for example because another program holds it; the QP stays
  /// unconnected. Throws DeviceError when the QP cannot be connected with any port.
  virtual bool connect_qp(std::uint32_t qpn, const RemoteQp& remote, std::uint16_t source_port) = 0;
  /// With the progress lock, once a QP is connected: its set-up is over, and all other calls may name it.
  virtual void adopt_qp(std::uint32_t qpn) { static_cast<void>(qpn); }
  /// Changes the source port. When the new one is refused, the old one stays. One change of a QP at a time.
  virtual PortChange set_port(std::uint32_t qpn, std::uint16_t source_port) = 0;
  [[nodiscard]] virtual PortMethod port_method() const = 0;
  /// The packets in flight were lost with their path. They are sent again at once, where the back end decides that.
  virtual void path_changed(std::uint32_t qpn, Nanos now) {
    static_cast<void>(qpn);
    static_cast<void>(now);
  }
  virtual void fail_qp(std::uint32_t qpn) = 0;
  /// Stops a connected QP whose path is dead or takes shorter packets only (Completion::Kind::kPathMtu), or which is
  /// broken or lost (kQpBroken): it sends nothing more and accepts nothing more. The completion kStopped follows.
  /// Requests that have not ended stay, for take_back.
  virtual void stop_qp(std::uint32_t qpn) = 0;
  /// Requests of a stopped QP, given the number of messages (SENDs and WRITEs with immediate data) that arrived at its
  /// other end, which is stopped too. What arrived completes. Returns the rest, oldest first, to be posted elsewhere.
  virtual std::vector<WorkRequest> take_back(std::uint32_t qpn, std::uint32_t arrived) = 0;
  virtual void destroy_qp(std::uint32_t qpn) = 0;
  virtual void post(std::uint32_t qpn, const WorkRequest& request) = 0;
  virtual void post_receive(const ReceiveBuffer& buffer) = 0;
  [[nodiscard]] virtual PathEstimate estimate(std::uint32_t qpn) const = 0;
  [[nodiscard]] virtual QpStatistics statistics(std::uint32_t qpn) const = 0;
  /// The same without waiting for a shard; of a QP with work it may be a millisecond old, of others older.
  [[nodiscard]] virtual QpStatistics recent_statistics(std::uint32_t qpn) const { return statistics(qpn); }
  [[nodiscard]] virtual Discards discards() const = 0;
  /// Whether the network port is down. False where the back end does not know.
  [[nodiscard]] virtual bool port_down() const { return false; }
  /// Whether the NIC has failed for good. Any thread may ask.
  [[nodiscard]] virtual bool lost() const { return false; }
  /// Trouble of the network port that explains the loss of a peer: that it is down, or was within the retry time. Empty
  /// without trouble, and where the back end does not know.
  [[nodiscard]] virtual std::string port_trouble(Nanos now) const {
    static_cast<void>(now);
    return {};
  }

  /// Whether flowlets posted now would leave soon. While it is false, flowlets should wait in the engine: it then
  /// assigns them to lanes with newer measurements, and they leave in the order of their messages.
  [[nodiscard]] virtual bool wants_work(Nanos now) const = 0;
  /// Whether a WRITE of `bytes` followed by a short SEND costs less than a WRITE with immediate data.
  [[nodiscard]] virtual bool ends_separately(std::uint64_t bytes, std::uint32_t path_mtu) const {
    static_cast<void>(bytes), static_cast<void>(path_mtu);
    return false;
  }
  /// Receives packets and serves timers. Appends finished work to `completions`. True when anything was done.
  virtual bool progress(Nanos now, std::vector<Completion>& completions) = 0;
  /// The same, and takes all that had arrived when it was called, however much that is. True when some of it waits for
  /// receive buffers.
  virtual bool take_arrived(Nanos now, std::vector<Completion>& completions) {
    progress(now, completions);
    return false;
  }
  /// Sends what was posted, as far as windows and pacing allow. True when anything was sent.
  virtual bool flush(Nanos now) = 0;
  /// Sends what was held back to be sent together with more, such as acknowledgements. Call it before sleeping.
  virtual void settle(Nanos now) = 0;
  /// After `settle`, and before `deadline` says how long: the caller sleeps until then, or until event_fd is readable.
  virtual void rest() {}
  /// When progress, flush or settle has work even if nothing arrives.
  [[nodiscard]] virtual Nanos deadline(Nanos now) const = 0;
  /// Readable when something arrived.
  [[nodiscard]] virtual int event_fd() const = 0;
};

}  // namespace paralet
