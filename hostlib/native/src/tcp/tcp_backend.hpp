// SPDX-License-Identifier: Apache-2.0
// The `tcp` back end: lanes over TCP (docs/tcp.md). A QP sends on a TCP connection from its lane's source port to the
// port that the peer listens on, and receives on the connection that its peer opened.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/backend.hpp"
#include "backend/faults.hpp"
#include "backend/memory_table.hpp"
#include "base/interfaces.hpp"
#include "base/pacer.hpp"
#include "base/ring.hpp"
#include "tcp/greeter.hpp"
#include "tcp/lane_faults.hpp"
#include "tcp/lane_socket.hpp"
#include "tcp/receiver.hpp"
#include "tcp/sender.hpp"
#include "tcp/watcher.hpp"

namespace paralet {

struct TcpOptions {
  tcp::SocketSettings sockets;
  double line_rate_bps = 0;  ///< paces all lanes together, in bits per second; 0: no pacing
  Nanos min_timeout = 5 * kMillisecond;
  QpnShare qpns;  ///< of a device with several shards
  Faults faults;
};

class TcpBackend : public Backend {
 public:
  /// Throws DeviceError when no interface has the address, or the kernel refuses a socket or the congestion control.
  explicit TcpBackend(const TcpOptions& options);

  [[nodiscard]] Transport transport() const override { return Transport::kTcp; }
  /// The TCP port that lanes of peers connect to: 4791, where it was free.
  [[nodiscard]] std::uint16_t udp_port() const override { return greeter_.port(); }
  [[nodiscard]] std::uint32_t max_path_mtu() const override;
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
  void post_receive(const ReceiveBuffer& buffer) override { buffers_.push_back(buffer); }
  [[nodiscard]] PathEstimate estimate(std::uint32_t qpn) const override;
  [[nodiscard]] QpStatistics statistics(std::uint32_t qpn) const override;
  [[nodiscard]] Discards discards() const override;
  [[nodiscard]] bool wants_work(Nanos now) const override;
  bool progress(Nanos now, std::vector<Completion>& completions) override;
  bool take_arrived(Nanos now, std::vector<Completion>& completions) override;
  bool flush(Nanos now) override;
  void settle(Nanos now) override;
  [[nodiscard]] Nanos deadline(Nanos now) const override;
  [[nodiscard]] int event_fd() const override { return watcher_.fd(); }

 private:
  struct Qp {
    Qp(tcp::SendContext& send, tcp::ReceiveContext& receive, tcp::Watcher& watcher, const QpIdentity& id)
        : identity(id), sender(send, id), receiver(receive, watcher, id.qpn) {}
    QpIdentity identity;
    std::optional<RemoteQp> remote;  ///< once connected
    tcp::Sender sender;
    tcp::Receiver receiver;
    bool active = false;     ///< listed in active_
    bool receiving = false;  ///< listed in receiving_
    bool owing = false;      ///< listed in owing_
  };

  /// The time of a call that comes between two rounds: after a sleep, the last round was long ago.
  void wake() { now_ = std::max(now_, now()); }
  void look();
  void greet(tcp::Greeting&& greeting);
  [[nodiscard]] static bool fits(const Qp& qp, const tcp::Hello& hello, const IpAddress& from);
  void activate(Qp& qp);
  void receive_on(Qp& qp);
  bool receive(std::size_t most);
  void acknowledge();
  bool hand_over(std::vector<Completion>& completions);

  TcpOptions options_;
  Interface interface_;
  tcp::Watcher watcher_;
  tcp::Greeter greeter_;
  MemoryTable memory_;
  Ring<ReceiveBuffer> buffers_;
  std::vector<Completion> completions_;
  tcp::Scratch scratch_;
  tcp::Batch batch_;
  tcp::ReceiveContext receive_context_{.memory = memory_, .buffers = buffers_, .completions = completions_};
  tcp::SendContext send_context_{.settings = options_.sockets,
                                 .min_timeout = options_.min_timeout,
                                 .watcher = watcher_,
                                 .completions = completions_,
                                 .batch = batch_};
  Pacer pacer_;
  tcp::LaneFaults faults_;
  std::vector<FileDescriptor> unheard_;  ///< connections over paths that have died
  Discards discards_;
  std::unordered_map<std::uint32_t, Qp> qps_;  ///< by QPN; pointers stay
  std::vector<Qp*> active_;                    ///< have something to send, or a connection on its way
  std::vector<Qp*> receiving_;                 ///< have something to receive, or wait for a receive buffer
  std::vector<Qp*> owing_;                     ///< have short messages to acknowledge
  Nanos owing_since_ = 0;                      ///< the first of owing_
  std::size_t next_active_ = 0;                ///< round robin over active_
  Nanos now_ = 0;
};

}  // namespace paralet
