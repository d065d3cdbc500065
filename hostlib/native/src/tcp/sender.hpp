// SPDX-License-Identifier: Apache-2.0
// The sending half of a QP: its requests, and the connection that they go over. A connection that ends, or that another
// source port replaces, is followed by a new one, and the peer then says which frames it has: none is lost, and none
// arrives twice.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "backend/backend.hpp"
#include "base/clock.hpp"
#include "tcp/frames.hpp"
#include "tcp/lane_socket.hpp"
#include "tcp/send_queue.hpp"
#include "tcp/watcher.hpp"

namespace paralet::tcp {

/// What the senders of a device share. It outlives them.
struct SendContext {
  const SocketSettings& settings;
  Nanos min_timeout;
  Watcher& watcher;
  std::vector<Completion>& completions;
  Batch& batch;
};

class Sender {
 public:
  Sender(SendContext& context, const QpIdentity& own) : context_(context), own_(own) {}
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;
  ~Sender();

  /// Begins to connect to the peer. Returns 0, or the errno where that fails at once.
  int connect(const RemoteQp& remote, std::uint16_t source_port, Nanos now);
  /// Backend::set_port. A QP without a connection has the port at once.
  PortChange set_port(std::uint16_t source_port, Nanos now);
  /// Backend::path_changed.
  void path_changed(Nanos now);
  void post(const WorkRequest& request, Nanos now);
  /// False for a number that none of its connections has.
  bool on_event(std::uint64_t watched, std::uint32_t events, Nanos now);

  /// One system call that sends. Returns the bytes that the socket took.
  std::size_t send(std::size_t most);
  /// The connection ends, as by a reset on its way.
  void cut(Nanos now) {
    look(now);
    lost_current(now);
  }
  /// Looks at what the peer has acknowledged, and serves timers.
  void tick(Nanos now);
  /// When `tick` has work.
  [[nodiscard]] Nanos deadline() const;

  /// Ends all requests. The oldest has `status`.
  void fail(Status status);
  /// Sends nothing more, and keeps the requests.
  void stop();
  std::vector<WorkRequest> take_back(std::uint32_t arrived) {
    return queue_.take_back(arrived, own_.qpn, context_.completions);
  }

  /// Bytes that the socket would take now, as far as that is known.
  [[nodiscard]] std::uint64_t sendable() const { return writable() ? queue_.waiting_bytes() : 0; }
  /// Neither `tick` nor `send` has anything to do before the next event or request.
  [[nodiscard]] bool idle() const { return ended_ || (queue_.empty() && current_ && !next_); }
  [[nodiscard]] bool failed() const { return failed_; }
  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] const SendQueue& queue() const { return queue_; }
  [[nodiscard]] PathEstimate estimate(Nanos now) const;
  /// Adds what is known of sending.
  void add_to(QpStatistics& statistics, Nanos now) const;

 private:
  /// A TCP connection to the peer.
  struct Connection {
    FileDescriptor socket;
    std::uint64_t watched = 0;
    std::uint16_t port = 0;
    bool greeted = false;       ///< the hello has been sent
    Nanos give_up_at = kNever;  ///< unless the peer has welcomed it
    Nanos welcomed_at = 0;
    std::uint8_t received = 0;
    std::array<std::byte, kNoticeBytes> notice{};
  };
  [[nodiscard]] bool writable() const { return current_ && writable_ && !ended_ && !queue_.all_handed_over(); }
  int open(std::uint16_t port, Nanos now);
  void close(std::optional<Connection>& connection);
  void connected(Nanos now);
  void greet(Nanos now);
  std::optional<Notice> hear(std::optional<Connection>& connection, bool& ended);
  void listen(Nanos now);
  bool answered(std::uint64_t frames, Nanos now);
  void welcomed(const Notice& notice, Nanos now);
  void lost_next(Nanos now);
  void lost_current(Nanos now);
  void leave_current();
  bool look(Nanos now);
  /// When to look for acknowledgements that nobody waits for.
  [[nodiscard]] Nanos seldom_look_at() const;
  void progressed(Nanos now);
  void retry(Nanos now);
  void pause(Nanos now);
  void watch_silence(Nanos now);
  void measure(Nanos now) const;
  void end(Status status);
  [[nodiscard]] bool of_use(Nanos now) const;
  [[nodiscard]] Nanos timeout() const;
  [[nodiscard]] Nanos silence(Nanos now) const { return queue_.empty() ? 0 : now - progress_at_; }

  SendContext& context_;
  QpIdentity own_;
  RemoteQp remote_;
  SendQueue queue_;
  std::optional<Connection> current_;  ///< welcomed by the peer
  std::optional<Connection> next_;     ///< on its way to be
  std::uint16_t port_ = 0;             ///< of `current_`, and of those that follow it
  bool changing_ = false;              ///< `next_` has another port, and the completion kPortChanged is due
  bool writable_ = false;              ///< the socket has room, as far as that is known
  bool failed_ = false;
  bool ended_ = false;          ///< failed or stopped
  std::uint32_t attempts_ = 0;  ///< connections so far
  unsigned failures_ = 0;       ///< connections in a row that were of no use
  unsigned silences_ = 0;       ///< timeouts since the last progress
  Nanos retry_at_ = kNever;
  Nanos progress_at_ = 0;     ///< the peer acknowledged or answered, or a request came when there was none
  Nanos looked_at_ = 0;       ///< for acknowledgements
  Nanos silent_at_ = kNever;  ///< the next timeout
  std::uint64_t timeouts_ = 0;
  std::uint64_t acknowledged_ = 0;      ///< bytes, over all connections
  std::uint64_t acknowledged_now_ = 0;  ///< bytes of the stream of `current_`
  TcpState former_;                     ///< sums over the connections before
  mutable TcpState state_;              ///< of `current_`, when it was last measured
  mutable Nanos measured_at_ = 0;
  Nanos sampled_at_ = 0;  ///< of the round trip
};

}  // namespace paralet::tcp
