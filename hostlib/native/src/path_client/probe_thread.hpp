// SPDX-License-Identifier: Apache-2.0
// The thread that probes paths for the path service, so that neither the data path nor the connection waits for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/mutex.hpp"
#include "path_client/asks.hpp"
#include "path_client/messages.hpp"
#include "path_client/probe_order.hpp"
#include "path_client/probe_owners.hpp"
#include "path_client/watches.hpp"
#include "prober/prober.hpp"

namespace paralet::path_client {

/// Sums over the threads of a client, one after the other. Any thread may read.
struct ProbeTotals {
  std::atomic<std::uint64_t> sent{0};
  std::atomic<std::uint64_t> answered{0};
  std::atomic<std::uint64_t> limited{0};     ///< waited because a router answers no faster
  std::atomic<std::uint64_t> mismatched{0};  ///< ICMP messages that quote no probe
  std::atomic<std::uint64_t> moved{0};       ///< changes of watched ports
  std::atomic<std::uint64_t> refused{0};     ///< orders: an ask whose number is open, a watch of too many ports
};

class ProbeThread {
 public:
  struct Options {
    IpAddress from;    ///< of the device
    bool tcp = false;  ///< lanes are TCP connections: probes are SYNs
    prober::Limits limits;
  };
  /// The thread adds to `totals`, and calls `answered` when there are lines to take. Throws DeviceError when the
  /// process may start no more threads or open no more files.
  ProbeThread(const Options& options, ProbeTotals& totals, std::function<void()> answered);
  ProbeThread(const ProbeThread&) = delete;
  ProbeThread& operator=(const ProbeThread&) = delete;
  /// Ends the thread within a packet's time; what is under way is forgotten.
  ~ProbeThread();

  // -- any thread -------------------------------------------------------------------------------------------------

  void order(ProbeOrder order);
  /// The lines for the service since the last call.
  std::string take_lines();

 private:
  static constexpr std::size_t kMostPeers = 4096;  ///< probes to further ones fail

  using Owner = ProbeOwners::Owner;

  void wake() const;
  void run();
  void wait(Nanos until);
  void take_orders(Nanos now);
  void take(const ProbeOrder& order, Nanos now);
  void hand_over(Owner owner, std::uint16_t port, std::uint8_t ttl);
  void take_back(const Owner& owner, std::uint16_t port, std::uint8_t ttl);
  void take_answers();
  void settle(const prober::Probe& probe, const ProbedPort& answer, Nanos sent_at);
  void settle(const Owner& owner, std::uint8_t ttl, const ProbedPort& answer);
  void publish();
  void count();
  void aim(PeerName peer);

  const Options options_;
  ProbeTotals& totals_;
  const std::function<void()> answered_;
  std::atomic<bool> stop_{false};
  FileDescriptor wake_;

  // Of the thread alone.
  prober::Prober prober_;
  std::unordered_map<PeerName, std::size_t> targets_;
  std::unordered_map<PeerName, PeerLanes> lanes_;
  ProbeOwners owners_;
  Asks asks_;
  Watches watches_;
  prober::ProberCounters counted_;  ///< in `totals_` already

  Mutex mutex_;
  std::vector<ProbeOrder> orders_ PARALET_GUARDED_BY(mutex_);
  std::string lines_ PARALET_GUARDED_BY(mutex_);
  std::thread thread_;  ///< last, so that it sees all members
};

}  // namespace paralet::path_client
