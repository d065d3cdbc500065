// SPDX-License-Identifier: Apache-2.0
// The thread that holds the connection to the path service: TCP, lines, reconnecting. The session handles the messages.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/file_descriptor.hpp"
#include "base/random.hpp"
#include "path_client/channel.hpp"
#include "path_client/channels.hpp"
#include "path_client/mailbox.hpp"
#include "path_client/options.hpp"
#include "path_client/probe_thread.hpp"
#include "path_client/session.hpp"

namespace paralet::path_client {

/// Exponential back-off up to a bound. It grows slowly, so that a pause is a part of the time that has passed already.
/// A random part spreads the attempts of hosts that lost the same service.
class Backoff {
 public:
  Backoff(Nanos least, Nanos most, std::uint64_t seed) : least_(least), most_(most), random_(seed), next_(least) {}
  Nanos next();
  void reset() { next_ = least_; }

 private:
  Nanos least_;
  Nanos most_;
  SplitMix64 random_;
  Nanos next_;
};

struct ClientCounters {
  bool connected = false;
  Nanos since = 0;  ///< when `connected` changed last
  std::uint64_t connections = 0;
  std::uint64_t announces = 0;
  std::uint64_t assigns = 0;
  std::uint64_t pushes = 0;
  std::uint64_t assigned = 0;
  std::uint64_t stale = 0;
  std::uint64_t invalid = 0;
  std::uint64_t probes_sent = 0;
  std::uint64_t probes_answered = 0;
  std::uint64_t probes_limited = 0;
  std::uint64_t probes_mismatched = 0;
  std::uint64_t ports_moved = 0;
};

class Client {
 public:
  /// The client's thread calls `wake` when `mailbox` has a new table. Throws DeviceError when the service's address is
  /// invalid, or the files for TLS cannot be used. It is no error that no service answers there.
  Client(const Options& options, Hello hello, Mailbox& mailbox, std::function<void()> wake);
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() { stop(); }
  /// Ends the connection and the thread. Stopping twice is allowed; not from several threads at once.
  void stop();
  /// Any thread.
  [[nodiscard]] ClientCounters counters() const;

 private:
  enum class State : std::uint8_t { kOff, kConnecting, kConnected };

  void run();
  void start_connecting(Nanos now);
  void on_connecting(Nanos now);
  void on_readable(Nanos now);
  void on_lines(std::size_t searched, Nanos now);
  void check_time(Nanos now);
  void flush();
  [[nodiscard]] bool has_lasted(Nanos now) const;
  [[nodiscard]] Nanos ping_at() const;
  [[nodiscard]] Nanos silent_at() const;
  [[nodiscard]] Nanos welcome_by() const;
  void disconnect(Nanos now);
  void drop(const std::string& why, Nanos now);
  void set_connected(bool connected, Nanos now);
  void share();
  void warn_once(const std::string& what);
  void start_probes(const Welcome& wish);
  void pass_orders();
  [[nodiscard]] Nanos deadline() const;

  static constexpr Nanos kConnectTime = 1 * kSecond;  ///< timeout of a connection attempt, below TCP's own
  static constexpr Nanos kWelcomeTime = 5 * kSecond;
  static constexpr std::size_t kMaxUnsent = std::size_t{1} << 22;  ///< unsent bytes at which the connection is dropped

  Options options_;
  std::vector<Address> services_;
  OpenChannel open_channel_;
  std::size_t service_ = 0;  ///< the one of the connection, or of the next attempt
  std::size_t tried_ = 0;    ///< since the last pause between attempts, or the last connection that lasted
  Mailbox& mailbox_;
  std::function<void()> wake_;
  ProbeThread::Options probing_;  ///< but for the limits of routers
  Session session_;
  ProbeTotals probe_totals_;
  std::unique_ptr<ProbeThread> probes_;  ///< while the service wants them
  Backoff backoff_;

  State state_ = State::kOff;
  FileDescriptor socket_;
  std::unique_ptr<Channel> channel_;  ///< in state kConnected
  std::string in_;
  std::string out_;
  std::string wire_;       ///< bytes for the socket
  Nanos attempt_at_ = 0;   ///< time of the next attempt, in state kOff
  Nanos since_ = 0;        ///< start of this state
  Nanos received_at_ = 0;  ///< last data from the service
  Nanos sent_at_ = 0;      ///< last data to the service
  Nanos pinged_at_ = 0;
  Nanos unanswered_at_ = kNever;  ///< first ping since the last data from the service
  std::uint64_t nonce_ = 0;
  bool loss_logged_ = false;  ///< the log says that the service is away
  bool invalid_logged_ = false;

  std::atomic<bool> stop_{false};
  std::atomic<bool> connected_{false};
  std::atomic<Nanos> changed_at_{0};  ///< when `connected_` changed last
  std::atomic<std::uint64_t> connections_{0};
  std::atomic<std::uint64_t> announces_{0};
  std::atomic<std::uint64_t> assigns_{0};
  std::atomic<std::uint64_t> pushes_{0};
  std::atomic<std::uint64_t> assigned_{0};
  std::atomic<std::uint64_t> stale_{0};
  std::atomic<std::uint64_t> invalid_{0};
  std::thread thread_;
};

}  // namespace paralet::path_client
