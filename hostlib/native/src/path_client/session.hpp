// SPDX-License-Identifier: Apache-2.0
// The protocol state of a connection to the path service: open elephants, assigned ports, messages that are due. No
// I/O: events, lines and time in, lines and tables out. Used by the client's thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "path_client/mailbox.hpp"
#include "path_client/messages.hpp"
#include "path_client/probe_order.hpp"

namespace paralet::path_client {

struct SessionCounters {
  std::uint64_t announces = 0;  ///< announcements sent, growth and repetition included
  std::uint64_t assigns = 0;    ///< assignments accepted
  std::uint64_t pushes = 0;     ///< of these, those that answered no announcement
  std::uint64_t assigned = 0;   ///< elephants that got ports, each counted once
  std::uint64_t stale = 0;      ///< assignments of an older generation, or for an elephant that had ended
  std::uint64_t invalid = 0;    ///< invalid messages
};

class Session {
 public:
  Session(Hello hello, std::string job) : hello_(std::move(hello)), job_(std::move(job)) {}

  // Messages to the service are appended to `out`.
  /// An event of the data path.
  void on_event(const Event& event, std::string& out);
  /// The connection is established: says hello.
  void on_connected(std::string& out);
  /// The connection is lost: all assignments are void.
  void on_disconnected();
  enum class Verdict : std::uint8_t { kContinue, kDrop, kSayOlder };
  /// A line from the service, without its line feed. kDrop: drop the connection; take_warning gives the reason.
  /// kSayOlder: connect again at once, because the service wants an older version of the protocol.
  Verdict on_line(std::string_view line, Nanos now, std::string& out);
  /// Sends what is due.
  void on_time(Nanos now, std::string& out);
  /// When on_time has something to send, kNever when nothing is due.
  [[nodiscard]] Nanos deadline() const;

  /// Whether the service has accepted this host.
  [[nodiscard]] bool welcome() const { return welcome_; }

  // -- probes -----------------------------------------------------------------------------------------------------
  /// The welcome, when the service has just asked this host to probe. `announce_open` has to follow.
  std::optional<Welcome> take_wish() { return std::exchange(wish_, std::nullopt); }
  /// This host probes, at most `rate` packets a second: says so. From now on there may be orders.
  void offer_probes(double rate, std::string& out);
  /// Announces what is open. After each wish, and after the offer: a service looks for no ports for a host that has not
  /// offered to probe.
  void announce_open(std::string& out) { announce_all(false, out); }
  std::vector<ProbeOrder> take_orders() { return std::exchange(orders_, {}); }

  // -- what has changed -------------------------------------------------------------------------------------------
  /// The table to publish when anything has changed since the last call, else nullptr.
  std::shared_ptr<const Assignments> take_changes();
  /// The last warning for the user, empty when there is none. Reading clears it.
  std::string take_warning() { return std::exchange(warning_, {}); }
  [[nodiscard]] const SessionCounters& counters() const { return counters_; }

 private:
  struct Elephant {
    Announce announce;
    std::uint16_t port = 0;  ///< with which it has begun; 0: not yet, or it can change its port
    bool answered = false;
    bool assigned = false;  ///< has got ports, on this connection or an earlier one
  };
  struct Pushed {
    std::vector<std::uint16_t> ports;
    double rate_bps = 0;
  };

  void announce(const Elephant& elephant, std::string& out);
  void announce_all(bool again, std::string& out);
  void release(const Release& release, std::string& out);
  void assign(const Assign& assign);
  void set(PeerName peer, PeerPaths paths, bool cut = false);
  Verdict order(ProbeOrder order);
  void tell_lanes(PeerName peer);
  void vote(const VoteAsk& ask, std::string& out);
  Verdict invalid(const InvalidMessage& message);

  static constexpr std::size_t kMaxPeers = 65536;   // named by one service
  static constexpr std::size_t kMaxMeasured = 256;  // flows in a line of up to 64 KiB
  static constexpr Nanos kMeasureEvery = 1 * kSecond;
  static constexpr Nanos kBusyDelay = 1 * kSecond;

  Hello hello_;
  std::string job_;
  bool welcome_ = false;
  unsigned version_ = kVersion;  ///< that hello says
  std::optional<Welcome> wish_;
  bool probes_ = false;  ///< this host has offered to
  std::vector<ProbeOrder> orders_;
  std::unordered_map<PeerName, std::vector<std::uint32_t>> qpns_;  ///< by lane
  std::map<std::uint64_t, Elephant> open_;                         ///< by id
  std::unordered_map<PeerName, std::uint64_t> elephants_;          ///< open ids by peer
  std::unordered_map<PeerName, Pushed> pushed_;                    ///< assignments without an elephant
  std::map<std::uint64_t, Measured> measured_;                     ///< not sent yet
  Nanos measured_at_ = 0;
  Nanos again_at_ = kNever;       ///< when unanswered elephants are announced again
  std::uint64_t generation_ = 0;  ///< of the last assignment
  Vote voted_;                    ///< with the highest generation, on this connection or an earlier one
  Assignments now_;
  std::uint64_t serial_ = 0;
  bool changed_ = false;
  std::string warning_;
  SessionCounters counters_;
};

}  // namespace paralet::path_client
