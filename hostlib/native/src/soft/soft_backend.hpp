// SPDX-License-Identifier: Apache-2.0
// The `soft` back end: RoCEv2 RC in user space over UDP sockets.
#pragma once

#include <sys/uio.h>

#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/backend.hpp"
#include "base/interfaces.hpp"
#include "base/log.hpp"
#include "base/pacer.hpp"
#include "base/route_mtu.hpp"
#include "soft/batch.hpp"
#include "soft/direct_placement.hpp"
#include "soft/fault_injector.hpp"
#include "soft/segment_table.hpp"
#include "soft/soft_qp.hpp"
#include "soft/spare_memory.hpp"
#include "soft/udp_sockets.hpp"
#include "wire/icrc.hpp"
#include "wire/wire.hpp"

namespace paralet {

/// What `soft` offers a peer in place of the options of a NIC (docs/protocol.md).
inline constexpr std::uint32_t kSelectiveRepeat = 1;
inline constexpr std::uint32_t kMarkCounts = 2;  ///< acknowledgements count the packets that came marked
inline constexpr std::uint32_t kHostDelays = 4;  ///< acknowledgements say how long the newest packet has waited
inline constexpr Ece soft_ece(std::uint32_t options) {
  return options == 0 ? Ece{} : Ece{.vendor_id = kSoftVendor, .options = options, .comp_mask = 0};
}

struct SoftOptions {
  IpAddress address;
  std::uint8_t traffic_class = 0;  ///< TOS byte of all packets; without ECN bits ECT(0) where peers report marks
  double line_rate_bps = 0;        ///< paces all lanes together, in bits per second; 0: no pacing
  Nanos min_timeout = 5 * kMillisecond;
  Nanos retry_time = 10 * kSecond;
  CongestionOptions congestion;
  std::uint32_t offers = kSelectiveRepeat | kMarkCounts | kHostDelays;  ///< used with peers that offer them too
  QpnShare qpns;                                                        ///< of a device with several shards
  std::optional<std::uint32_t> first_psn;                               ///< of every QP; nothing: random ones
  SegmentTable segments;
  Faults faults;
  std::string rdma_devices = "/sys/class/infiniband";  ///< where the kernel lists RDMA devices
  Log log = log_to_standard_error;
};

class SoftBackend : public Backend {
 public:
  /// Throws DeviceError when no interface has the address or the receiving port cannot be had.
  explicit SoftBackend(const SoftOptions& options);
  ~SoftBackend() override;

  [[nodiscard]] std::uint16_t udp_port() const override { return receive_socket_.port(); }
  [[nodiscard]] std::uint32_t max_path_mtu() const override;
  [[nodiscard]] std::uint32_t path_mtu_to(unsigned member, const IpAddress& remote) const override;
  std::uint32_t register_memory(std::byte* base, std::uint64_t length) override { return memory_.add(base, length); }
  void register_as(std::uint32_t rkey, std::byte* base, std::uint64_t length) override {
    memory_.add_as(rkey, base, length);
  }
  void deregister_memory(std::uint32_t rkey) override { memory_.remove(rkey); }
  void retire_memory(std::uint32_t rkey) override { memory_.retire(rkey); }
  QpIdentity create_qp() override;
  [[nodiscard]] Ece ece(std::uint32_t qpn) const override;
  bool connect_qp(std::uint32_t qpn, const RemoteQp& remote, std::uint16_t source_port) override;
  PortChange set_port(std::uint32_t qpn, std::uint16_t source_port) override;
  [[nodiscard]] PortMethod port_method() const override { return PortMethod::kSocket; }
  void path_changed(std::uint32_t qpn, Nanos now) override;
  void fail_qp(std::uint32_t qpn) override;
  void stop_qp(std::uint32_t qpn) override;
  std::vector<WorkRequest> take_back(std::uint32_t qpn, std::uint32_t arrived) override;
  void destroy_qp(std::uint32_t qpn) override;
  void post(std::uint32_t qpn, const WorkRequest& request) override;
  void post_receive(const ReceiveBuffer& buffer) override { receive_queue_.push_back(buffer); }
  [[nodiscard]] PathEstimate estimate(std::uint32_t qpn) const override;
  [[nodiscard]] QpStatistics statistics(std::uint32_t qpn) const override;
  [[nodiscard]] Discards discards() const override;
  [[nodiscard]] bool wants_work(Nanos now) const override;
  [[nodiscard]] bool ends_separately(std::uint64_t bytes, std::uint32_t path_mtu) const override;
  bool progress(Nanos now, std::vector<Completion>& completions) override;
  bool flush(Nanos now) override;
  void settle(Nanos now) override;
  [[nodiscard]] Nanos deadline(Nanos now) const override;
  [[nodiscard]] int event_fd() const override { return receive_socket_.fd(); }

 protected:
  /// send_batch (udp_sockets.hpp); tests refuse packets here.
  virtual SendResult hand_to_kernel(int fd, const IpAddress& address, std::uint16_t port, std::span<iovec> pieces,
                                    std::uint16_t segment_bytes) {
    return send_batch(fd, address, port, pieces, segment_bytes);
  }

  /// route_mtu.hpp; tests narrow the route here.
  [[nodiscard]] virtual std::optional<std::uint32_t> ask_route(const UdpEnd& from, const UdpEnd& to) const {
    return route_mtu(from, to);
  }

 private:
  using Qp = SoftQp;

  bool bind_port(Qp& qp, std::uint16_t source_port);
  [[nodiscard]] SendingAs sending_as(const Qp& qp, std::uint16_t source_port) const;
  [[nodiscard]] std::uint32_t agreed_options(const Ece& remote) const;
  [[nodiscard]] std::uint8_t traffic_class_to(const Ece& remote) const;
  void handle(std::span<const std::byte> datagram, const PacketOrigin& origin);
  void take_request(Qp& qp, const wire::Packet& packet, const PacketOrigin& origin);
  void take(const Arrival& arrival, const FaultInjector::Deliver& deliver);
  bool receive();
  void note_arrival(bool run);
  bool take_placed(std::size_t index, const PacketOrigin& origin);
  bool place(const Qp& expected, std::span<std::byte> target);
  [[nodiscard]] UdpFlow flow_from(const PacketOrigin& origin) const;
  void send_acknowledgements(bool all);
  void acknowledge(Qp& qp);
  void notify_congestion(Qp& qp);
  void send_control(const Qp& qp, const OutgoingPacket& packet);
  std::size_t transmit_one(Qp& qp, Nanos now);
  [[nodiscard]] bool outgrows_route(Qp& qp);
  void refuse(Qp& qp, int error);
  void tell_send_error(const Qp& qp, std::size_t from);
  void activate(Qp& qp);
  [[nodiscard]] UdpFlow flow_of(const Qp& qp) const;

  SoftOptions options_;
  Interface interface_;
  ReceiveSocket receive_socket_;
  SendSockets send_sockets_;
  FaultInjector faults_;
  MemoryTable memory_;
  ReceiveQueue receive_queue_;
  ReassemblyMemory reassembly_{.left = kDeviceReassemblyBytes};
  IcrcVerifier verifier_;
  DirectPlacement placement_;
  Qp* writing_ = nullptr;   ///< QP of the last request packet; within a WRITE, its next packets are expected
  unsigned streaming_ = 0;  ///< arrivals that are received one run at a time, because runs arrived recently
  Pacer pacer_;
  Discards discards_;
  std::unordered_map<IpAddress, PeerPath> paths_;  ///< by peer address; node-based, so pointers stay
  std::unordered_map<std::uint32_t, Qp> qps_;      ///< by QPN; pointers stay
  std::vector<Completion> completions_;
  RcQpContext context_{.memory = memory_,
                       .receive_queue = receive_queue_,
                       .completions = completions_,
                       .congestion = options_.congestion,
                       .min_timeout = options_.min_timeout,
                       .retry_time = options_.retry_time};
  Batch batch_;
  std::vector<Qp*> active_;
  std::size_t next_active_ = 0;  ///< round robin over active_
  std::vector<Qp*> acknowledge_;
  SpareMemory spare_memory_;
  Nanos now_ = 0;
  Nanos arrived_at_ = 0;
  Nanos busy_until_ = 0;  ///< the kernel's send queue was full
};

}  // namespace paralet
