// SPDX-License-Identifier: Apache-2.0
// What a host knows of its dealings with the path service: elephants that are open, ports that were given, when to say
// what. Pure: events, lines and time in, lines and tables out. The client's thread carries it.
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

#include "path_client/link.hpp"
#include "path_client/messages.hpp"

namespace paralet::controller {

struct SessionCounters {
  std::uint64_t announces = 0;  ///< lines that announced, growth and repetition included
  std::uint64_t assigns = 0;    ///< assignments taken
  std::uint64_t pushes = 0;     ///< of them those that answered no announcement
  std::uint64_t assigned = 0;   ///< elephants that were given ports, each once
  std::uint64_t stale = 0;      ///< of an older generation, or for an elephant that had ended
  std::uint64_t nonsense = 0;   ///< lines that make no sense
};

class Session {
 public:
  Session(Hello hello, std::string job) : hello_(std::move(hello)), job_(std::move(job)) {}

  /// An event of the data path. What is to be said about it is appended to `out`.
  void on_event(const Event& event, std::string& out);
  /// The connection stands: says hello.
  void on_connected(std::string& out);
  /// Everything that was given is void.
  void on_disconnected();
  enum class Verdict : std::uint8_t { kGoOn, kDrop };
  /// A line of the service, without its line feed. kDrop: this connection is of no use, the complaint says why.
  Verdict on_line(std::string_view line, Nanos now, std::string& out);
  /// Says what is due.
  void on_time(Nanos now, std::string& out);
  /// When on_time has something to say, kNever when nothing is due.
  [[nodiscard]] Nanos deadline() const;

  [[nodiscard]] bool welcome() const { return welcome_; }
  /// A table to publish when anything has changed since the last call, else nullptr.
  std::shared_ptr<const Assignments> take_changes();
  /// What was wrong last, for people; empty: nothing. Taken by reading.
  std::string take_complaint() { return std::exchange(complaint_, {}); }
  [[nodiscard]] const SessionCounters& counters() const { return counters_; }

 private:
  struct Elephant {
    Announce announce;
    bool answered = false;
    bool assigned = false;  ///< has been given ports, by this connection or one before
  };
  struct Given {
    std::vector<std::uint16_t> ports;
    double rate_bps = 0;
  };

  void announce(const Elephant& elephant, std::string& out);
  void announce_all(bool again, std::string& out);
  void release(const Release& release, std::string& out);
  void assign(const Assign& assign);
  void set(PeerName peer, PeerPaths paths, bool cut = false);
  Verdict nonsense(const Nonsense& nonsense);

  static constexpr std::size_t kMaxPeers = 65536;   // that a service may name
  static constexpr std::size_t kMaxMeasured = 256;  // flows in a line, which may have 64 KiB
  static constexpr Nanos kMeasureEvery = 1 * kSecond;
  static constexpr Nanos kBusyDelay = 1 * kSecond;

  Hello hello_;
  std::string job_;
  bool welcome_ = false;
  std::map<std::uint64_t, Elephant> open_;                 ///< by id
  std::unordered_map<PeerName, std::uint64_t> elephants_;  ///< open ids by peer
  std::unordered_map<PeerName, Given> given_;              ///< without an elephant of ours
  std::map<std::uint64_t, Measured> measured_;             ///< not said yet
  Nanos measured_at_ = 0;
  Nanos again_at_ = kNever;  ///< when what was not answered is announced again
  std::uint64_t generation_ = 0;
  Assignments now_;
  std::uint64_t serial_ = 0;
  bool changed_ = false;
  std::string complaint_;
  SessionCounters counters_;
};

}  // namespace paralet::controller
