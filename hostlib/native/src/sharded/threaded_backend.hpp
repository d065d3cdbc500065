// SPDX-License-Identifier: Apache-2.0
// A back end that runs on a thread of its own (docs/notes/sharding.md). Its caller, the front, holds the device's
// progress lock, as for every back end. The two share rings: work and receive buffers go to the shard, completions come
// back. Estimates are published. Every other call waits until the shard has ended its round.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "backend/backend.hpp"
#include "base/file_descriptor.hpp"
#include "base/mutex.hpp"
#include "base/ring.hpp"
#include "base/snapshot.hpp"
#include "base/spsc_ring.hpp"
#include "sharded/wake_rule.hpp"

namespace paralet {

class ThreadedBackend final : public Backend {
 public:
  /// Throws DeviceError when the process may open no more descriptors or start no more threads.
  explicit ThreadedBackend(std::unique_ptr<Backend> inner);
  ~ThreadedBackend() override;
  ThreadedBackend(const ThreadedBackend&) = delete;
  ThreadedBackend& operator=(const ThreadedBackend&) = delete;

  [[nodiscard]] Transport transport() const override { return constant_.transport(); }
  [[nodiscard]] std::uint16_t udp_port() const override { return constant_.udp_port(); }
  [[nodiscard]] std::uint32_t max_path_mtu() const override { return constant_.max_path_mtu(); }
  [[nodiscard]] std::uint32_t path_mtu_to(unsigned member, const IpAddress& remote) const override {
    return constant_.path_mtu_to(member, remote);
  }
  std::uint32_t register_memory(std::byte* base, std::uint64_t length) override;
  void register_as(std::uint32_t rkey, std::byte* base, std::uint64_t length) override;
  void deregister_memory(std::uint32_t rkey) override;
  void retire_memory(std::uint32_t rkey) override;
  QpIdentity create_qp() override;
  [[nodiscard]] Ece ece(std::uint32_t qpn) const override;
  [[nodiscard]] std::uint16_t max_ip_id() const override { return constant_.max_ip_id(); }
  bool connect_qp(std::uint32_t qpn, const RemoteQp& remote, std::uint16_t source_port) override;
  PortChange set_port(std::uint32_t qpn, std::uint16_t source_port) override;
  [[nodiscard]] PortMethod port_method() const override { return constant_.port_method(); }
  void path_changed(std::uint32_t qpn, Nanos now) override;
  void fail_qp(std::uint32_t qpn) override;
  void stop_qp(std::uint32_t qpn) override;
  std::vector<WorkRequest> take_back(std::uint32_t qpn, std::uint32_t arrived) override;
  void destroy_qp(std::uint32_t qpn) override;
  void post(std::uint32_t qpn, const WorkRequest& request) override;
  void post_receive(const ReceiveBuffer& buffer) override;
  [[nodiscard]] PathEstimate estimate(std::uint32_t qpn) const override;
  [[nodiscard]] QpStatistics statistics(std::uint32_t qpn) const override;
  [[nodiscard]] QpStatistics recent_statistics(std::uint32_t qpn) const override {
    return qps_.at(qpn).statistics.read();
  }
  [[nodiscard]] Discards discards() const override;
  [[nodiscard]] bool wants_work(Nanos now) const override;
  [[nodiscard]] bool ends_separately(std::uint64_t bytes, std::uint32_t path_mtu) const override {
    return constant_.ends_separately(bytes, path_mtu);
  }
  bool progress(Nanos now, std::vector<Completion>& completions) override;
  bool take_arrived(Nanos now, std::vector<Completion>& completions) override;
  bool flush(Nanos now) override;
  void settle(Nanos now) override;
  void rest() override;
  [[nodiscard]] Nanos deadline(Nanos now) const override { return completions_.empty() ? kNever : now; }
  [[nodiscard]] int event_fd() const override { return to_front_.get(); }

 private:
  struct Estimate {
    PathEstimate path;
    std::uint64_t taken = 0;  ///< requests that it takes into account
  };
  struct Qp {
    explicit Qp(std::uint32_t number) : qpn(number) {}
    const std::uint32_t qpn;
    bool busy = false;         ///< listed in busy_
    std::uint64_t posted = 0;  ///< requests, by the front
    std::uint64_t taken = 0;   ///< of these, by the shard
    Snapshot<Estimate> estimate;
    Snapshot<QpStatistics> statistics;
  };
  struct Posted {
    Qp* qp = nullptr;
    WorkRequest work;
  };
  /// Holds the shard for a call that may not wait in a ring. What was posted before comes first.
  class Held;
  /// The same for a call that changes nothing: it leaves the rings alone.
  class Reading;

  void lock_shard() const PARALET_ACQUIRE(shard_);
  bool round(Nanos now) PARALET_REQUIRES(shard_);
  bool take_posted() PARALET_REQUIRES(shard_);
  void publish(Qp& qp) PARALET_REQUIRES(shard_);
  void publish_busy(Nanos now) PARALET_REQUIRES(shard_);
  bool hand_over() PARALET_REQUIRES(shard_);
  void signal_front();
  bool take_completions(std::vector<Completion>& completions);
  void take_late(std::vector<Completion>& completions) PARALET_REQUIRES(shard_);
  bool run_here(Nanos now, bool& worked);
  void wake();
  void run();
  void sleep(Nanos until);

  const Backend& constant_;  ///< the back end, for what never changes
  /// Whoever holds it runs the back end: the shard's thread, or the front in its place.
  mutable Mutex shard_;
  mutable std::atomic<unsigned> awaited_{0};  ///< calls of the front that wait for `shard_`: the thread lets them
  const std::unique_ptr<Backend> inner_ PARALET_PT_GUARDED_BY(shard_);
  /// By QPN. Only the front changes it, and holds `shard_` meanwhile; so the front reads it without. Pointers stay.
  std::unordered_map<std::uint32_t, Qp> qps_;
  std::vector<Qp*> busy_ PARALET_GUARDED_BY(shard_);  ///< QPs with work: their estimates change
  std::vector<Completion> fresh_ PARALET_GUARDED_BY(shard_);
  Ring<Completion> late_ PARALET_GUARDED_BY(shard_);  ///< found the ring full
  Nanos round_at_ PARALET_GUARDED_BY(shard_) = 0;     ///< time of the last round
  Nanos published_at_ PARALET_GUARDED_BY(shard_) = 0;
  Nanos asleep_until_ PARALET_GUARDED_BY(shard_) = 0;

  // From the front to the shard, and back.
  SpscRing<Posted> posted_;
  SpscRing<ReceiveBuffer> buffers_;
  SpscRing<Completion> completions_;
  std::atomic<std::uint64_t> taken_bytes_{0};  ///< of the work that has left `posted_`
  std::atomic<bool> wants_work_{true};
  std::atomic<bool> has_late_{false};
  std::atomic<bool> settles_{false};  ///< the next round settles

  // Of the front.
  std::uint64_t posted_bytes_ = 0;
  std::uint64_t flushed_bytes_ = 0;  ///< `posted_bytes_` at the last flush
  bool posted_any_ = false;          ///< since the last flush
  std::uint32_t buffers_given_ = 0;
  mutable std::atomic<bool> refused_{false};  ///< it keeps flowlets until the shard wants them
  WakeRule rule_;

  // Who sleeps.
  std::atomic<bool> asleep_{false};         ///< the thread
  std::atomic<bool> standing_back_{false};  ///< it sleeps through arrivals, because the front looks for them
  std::atomic<Nanos> looked_at_{0};         ///< when the front last looked, 0: it rests
  std::atomic<bool> front_rests_{false};    ///< a completion must wake the front
  std::atomic<bool> signalled_{false};      ///< `to_front_` is readable, or will be
  FileDescriptor to_shard_;                 ///< an eventfd
  FileDescriptor to_front_;                 ///< an eventfd
  std::atomic<bool> stop_{false};
  std::thread thread_;  ///< last, so that it sees all members
};

}  // namespace paralet
