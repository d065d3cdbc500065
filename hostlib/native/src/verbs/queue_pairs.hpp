// SPDX-License-Identifier: Apache-2.0
// The queue pairs of a device, from creation to destruction, and the completions of their requests.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/backend.hpp"
#include "base/mutex.hpp"
#include "verbs/completion_queue.hpp"
#include "verbs/connector.hpp"
#include "verbs/receive_queue.hpp"
#include "verbs/routes.hpp"
#include "verbs/send_queue.hpp"
#include "verbs/slow_calls.hpp"

namespace paralet::verbs {

struct QueuePair {
  QueuePair(Connector::Created created, SendContext& context)
      : identity(created.identity),
        sends(context, created.handle.get(), created.inline_bytes),
        handle(std::move(created.handle)) {}
  [[nodiscard]] QpStatistics statistics() const;

  QpIdentity identity;
  std::uint16_t port = 0;
  IpAddress remote;
  std::uint32_t path_mtu = 0;
  bool outgrown = false;   ///< the route takes only shorter packets, and the engine knows
  bool loopback = false;   ///< connected to itself: no other NIC can take its requests over
  bool active = false;     ///< has requests that the NIC does not have yet
  bool connected = false;  ///< may take receives
  bool last_wqe = false;   ///< in the error state: takes no more receives
  Nanos end_by = 0;        ///< deadline of `stop`, or of the end after `destroy`
  std::uint64_t received_packets = 0;
  std::uint64_t received_bytes = 0;
  SendQueue sends;
  QpHandle handle;  ///< last, so that it is destroyed first: the NIC releases memory before its registrations end
};

class QueuePairs {
 public:
  /// What the queue pairs of a device share. It outlives them.
  struct Shared {
    Connector& connector;
    ibv_pd* pd;
    CompletionQueue& completion_queue;
    SharedReceiveQueue& receives;
    SendContext& sends;
    SlowCalls& slow_calls;
    Routes& routes;
  };
  explicit QueuePairs(const Shared& shared) : shared_(shared) {}

  // Set-up, by any thread: see Backend::sets_up_concurrently. Both `create` throw DeviceError.
  QpIdentity create();
  /// A queue pair that is connected to itself, for READs of the device's own memory. Returns its number.
  std::uint32_t create_loopback();
  [[nodiscard]] Ece ece(std::uint32_t qpn) const;
  /// Backend::connect_qp.
  bool connect(std::uint32_t qpn, const RemoteQp& remote, std::uint16_t source_port);

  // Everything below needs the progress lock.
  void adopt(std::uint32_t qpn);
  [[nodiscard]] QueuePair& at(std::uint32_t qpn) const { return *adopted_.at(qpn); }
  /// nullptr where no adopted queue pair has the number.
  [[nodiscard]] QueuePair* find(std::uint32_t qpn) const;
  PortChange set_port(std::uint32_t qpn, std::uint16_t source_port);

  void post(std::uint32_t qpn, const WorkRequest& request);
  /// Hands requests to the NIC. True when there were any.
  bool flush();
  /// Takes completions from the NIC. True when there were any.
  bool poll(Nanos now);

  /// Asks for the routes of queue pairs about which the NIC is silent. Those whose packets are too long by now get a
  /// completion kPathMtu.
  void look_at_routes();

  /// Backend::stop_qp.
  void stop(std::uint32_t qpn);
  /// Moves the queue pair to the error state. `finish` destroys it once the NIC has returned everything, and other
  /// peers do not wait for that. Some drivers (mlx5) discard the completions of a destroyed queue pair, and their
  /// receives would be lost. In the error state the NIC accepts nothing from the peer, and the engine ignores
  /// completions of a queue pair that it has dropped.
  void destroy(std::uint32_t qpn);
  /// Whether `finish` has something to wait for.
  [[nodiscard]] bool ending() const { return !stopping_.empty() || !ending_.empty(); }
  /// Reports the queue pairs that are stopped, and destroys those that have returned everything after `destroy`.
  void finish(Nanos now);

  /// The port did not come back, or the device has failed (Status::kDeviceLost). The queue pairs keep their requests,
  /// which may go over another NIC.
  void lose_paths(Status why);
  /// Whether the device has failed. Any thread may ask.
  [[nodiscard]] bool lost() const { return lost_; }

  /// Backend::deadline.
  [[nodiscard]] Nanos deadline(Nanos now) const;

 private:
  [[nodiscard]] std::unique_ptr<QueuePair> make(int access);
  QpIdentity keep(std::unique_ptr<QueuePair> qp);
  void ask_for_lost_paths(std::size_t first);
  [[nodiscard]] std::optional<Completion> outgrown(QueuePair& qp);
  [[nodiscard]] QueuePair* fresh(std::uint32_t qpn) const;
  [[nodiscard]] bool returned_receives(const QueuePair& qp) const { return qp.last_wqe || !tells_last_wqe_; }
  void finish_stopping(Nanos now);
  void finish_ending(Nanos now);
  void end(QueuePair& qp);

  const Shared shared_;
  mutable Mutex fresh_mutex_;
  /// Created and not adopted. Only the thread that sets it up uses such a queue pair.
  std::unordered_map<std::uint32_t, std::unique_ptr<QueuePair>> fresh_ PARALET_GUARDED_BY(fresh_mutex_);
  std::unordered_map<std::uint32_t, std::unique_ptr<QueuePair>> adopted_;
  std::vector<QueuePair*> active_;
  std::vector<QueuePair*> stopping_;
  std::vector<QueuePair*> ending_;  ///< after `destroy`
  bool tells_last_wqe_ = true;      ///< the driver raises IBV_EVENT_QP_LAST_WQE_REACHED
  std::atomic<bool> lost_{false};
};

}  // namespace paralet::verbs
