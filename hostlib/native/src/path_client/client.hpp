// SPDX-License-Identifier: Apache-2.0
// The thread that keeps the connection to the path service: TCP, lines, reconnecting. What is said and what it means is
// the session's affair.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "base/clock.hpp"
#include "base/file_descriptor.hpp"
#include "base/random.hpp"
#include "path_client/link.hpp"
#include "path_client/options.hpp"
#include "path_client/session.hpp"

namespace paralet::controller {

/// How long to wait before trying again: twice as long each time, up to a bound, less a random part, so that hosts that
/// lost the same service do not come back all at once.
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
  Nanos since = 0;  ///< when that began
  std::uint64_t connections = 0;
  std::uint64_t announces = 0;
  std::uint64_t assigns = 0;
  std::uint64_t pushes = 0;
  std::uint64_t assigned = 0;
  std::uint64_t stale = 0;
  std::uint64_t nonsense = 0;
};

class Client {
 public:
  /// `wake` is called, on the client's thread, when there is something to take from `link`. Throws DeviceError when
  /// the service's address makes no sense; that nobody answers there is no error.
  Client(const Options& options, Hello hello, Link& link, std::function<void()> wake);
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
  void check_time(Nanos now);
  void flush();
  [[nodiscard]] Nanos ping_at() const;
  void drop(const std::string& why, Nanos now);
  void set_connected(bool connected, Nanos now);
  void share();
  void complain(const std::string& what);
  [[nodiscard]] Nanos deadline() const;

  static constexpr Nanos kConnectTime = 1 * kSecond;  ///< for the TCP connection: lost packets are no reason to wait
  static constexpr Nanos kWelcomeTime = 5 * kSecond;
  static constexpr std::size_t kMaxUnsent = std::size_t{1} << 22;  ///< bytes that a service may leave unread

  Options options_;
  Address service_;
  Link& link_;
  std::function<void()> wake_;
  Session session_;
  Backoff backoff_;

  State state_ = State::kOff;
  FileDescriptor socket_;
  std::string in_;
  std::string out_;
  Nanos attempt_at_ = 0;  ///< when off
  Nanos since_ = 0;       ///< this state
  Nanos heard_at_ = 0;
  Nanos said_at_ = 0;
  Nanos asked_at_ = 0;  ///< for a pong
  std::uint64_t nonce_ = 0;
  bool lost_told_ = false;  ///< people know that the service is away
  bool nonsense_told_ = false;

  std::atomic<bool> stop_{false};
  std::atomic<bool> connected_{false};
  std::atomic<Nanos> turned_at_{0};  ///< when `connected_` began to be what it is
  std::atomic<std::uint64_t> connections_{0};
  std::atomic<std::uint64_t> announces_{0};
  std::atomic<std::uint64_t> assigns_{0};
  std::atomic<std::uint64_t> pushes_{0};
  std::atomic<std::uint64_t> assigned_{0};
  std::atomic<std::uint64_t> stale_{0};
  std::atomic<std::uint64_t> nonsense_{0};
  std::thread thread_;
};

}  // namespace paralet::controller
