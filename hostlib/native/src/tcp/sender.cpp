// SPDX-License-Identifier: Apache-2.0
#include "tcp/sender.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "backend/rc_timing.hpp"

namespace paralet::tcp {
namespace {

// A connection that is of no use is tried again after a time that doubles.
constexpr Nanos kFirstTry = 250 * kMillisecond;
constexpr Nanos kFirstPause = 5 * kMillisecond;
constexpr unsigned kMostDoublings = 3;
// The kernel tells nobody that something was acknowledged, so it is asked: where somebody waits for that, not more
// often than this, ..
constexpr Nanos kLookEvery = 2 * kMicrosecond;
// .. else, and by a thread that has nothing else to do, after half the time that has passed already.
constexpr Nanos kShortestWait = 50 * kMicrosecond;
constexpr Nanos kLongestWait = 2 * kMillisecond;
constexpr Nanos kMeasureEvery = 1 * kMillisecond;
constexpr Nanos kFresh = 500 * kMillisecond;  // a round trip older than this counts as unknown
constexpr Nanos kTimeoutRoundTrips = 4;
// The peer puts acknowledgements of short messages off. Where its process is held up meanwhile, its kernel sends them
// after 40 ms.
constexpr Nanos kPutOff = 50 * kMillisecond;

}  // namespace

// -- connections ----------------------------------------------------------------------------------------------------

int Sender::open(std::uint16_t port, Nanos now) {
  FileDescriptor socket = tcp::connect(context_.settings, port, remote_.address, remote_.udp_port);
  if (!socket.valid()) return errno;
  const std::uint64_t watched = context_.watcher.add(socket.get(), own_.qpn);
  if (watched == 0) return errno;
  ++attempts_;
  next_.emplace(Connection{.socket = std::move(socket),
                           .watched = watched,
                           .port = port,
                           .give_up_at = now + (kFirstTry << std::min(failures_, kMostDoublings))});
  retry_at_ = kNever;
  return 0;
}

void Sender::close(std::optional<Connection>& connection) {
  if (!connection) return;
  context_.watcher.remove(connection->socket.get());
  reset(connection->socket);
  connection.reset();
}

Sender::~Sender() {
  close(current_);
  close(next_);
}

int Sender::connect(const RemoteQp& remote, std::uint16_t source_port, Nanos now) {
  remote_ = remote;
  if ((remote.ece.options & kAnswersPings) != 0) queue_.expect_answers();
  const int error = open(source_port, now);
  if (error == 0) port_ = source_port;
  return error;
}

PortChange Sender::set_port(std::uint16_t source_port, Nanos now) {
  if (ended_ || changing_) return PortChange::kRefused;
  if (source_port == port_) return PortChange::kDone;
  if (current_ && of_use(now)) failures_ = 0;
  close(next_);  // from the port before
  if (const int error = open(source_port, now); error != 0) {
    if (!current_) retry_at_ = now;
    return PortChange::kRefused;
  }
  changing_ = current_.has_value();
  if (changing_) return PortChange::kStarted;
  port_ = source_port;
  return PortChange::kDone;
}

void Sender::path_changed(Nanos now) {
  if (ended_ || next_ || !current_ || queue_.empty()) return;
  listen(now);
  look(now);
  if (current_ && !queue_.empty()) lost_current(now);
}

void Sender::post(const WorkRequest& request, Nanos now) {
  if (queue_.empty()) {
    progress_at_ = looked_at_ = now;
    silences_ = 0;
    silent_at_ = now + timeout();
  }
  queue_.post(request);
  if (failed_) fail(Status::kFlushed);
}

bool Sender::on_event(std::uint64_t watched, std::uint32_t events, Nanos now) {
  const bool failure = (events & (EPOLLERR | EPOLLHUP)) != 0;
  if (next_ && next_->watched == watched) {
    if (!next_->greeted) {
      if ((events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) != 0) connected(now);
    } else if ((events & (EPOLLIN | EPOLLRDHUP)) != 0 || failure) {
      bool ended = false;
      const auto notice = hear(next_, ended);
      if (notice && notice->kind == Notice::Kind::kWelcome) {
        welcomed(*notice, now);
        listen(now);
      } else if (notice && notice->kind == Notice::Kind::kRefused) {
        end(notice->status);
      } else if (notice || ended) {
        lost_next(now);
      }
    }
    return true;
  }
  if (!current_ || current_->watched != watched) return false;
  if ((events & EPOLLOUT) != 0) writable_ = true;
  if ((events & (EPOLLIN | EPOLLRDHUP)) != 0 || failure) listen(now);
  return true;
}

/// Takes all that the peer has said on its connection: no further event tells of it.
void Sender::listen(Nanos now) {
  while (current_) {
    bool ended = false;
    const auto notice = hear(current_, ended);
    if (!notice && !ended) return;
    look(now);
    if (notice && notice->kind == Notice::Kind::kAnswer && answered(notice->frames, now)) continue;
    if (notice && notice->kind == Notice::Kind::kRefused) {
      end(notice->status);
    } else {
      lost_current(now);
    }
    return;
  }
}

/// False where that answers nothing.
bool Sender::answered(std::uint64_t frames, Nanos now) {
  if (!queue_.answer(frames, own_.qpn, context_.completions)) return false;
  progressed(now);
  return true;
}

/// Reads what the peer says. `ended`: the connection has ended, or the peer speaks another language. If it returns
/// neither, the socket is empty.
std::optional<Notice> Sender::hear(std::optional<Connection>& connection, bool& ended) {
  while (connection->received < kNoticeBytes) {
    const ssize_t got = ::recv(connection->socket.get(), connection->notice.data() + connection->received,
                               kNoticeBytes - connection->received, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      ended = got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
      return std::nullopt;
    }
    connection->received = static_cast<std::uint8_t>(connection->received + got);
  }
  connection->received = 0;
  const auto notice = decode_notice(connection->notice);
  ended = !notice;
  return notice;
}

/// TCP has connected, or could not.
void Sender::connected(Nanos now) {
  if (error_of(next_->socket.get()) != 0) {
    lost_next(now);
  } else {
    greet(now);
  }
}

/// Says hello. The peer then takes what has come over the connection before, and closes it: from here on only its
/// welcome tells what has arrived.
void Sender::greet(Nanos now) {
  if (current_) listen(now);  // what it said before its connection ends would be lost
  if (!next_) return;
  if (current_) {
    look(now);
    leave_current();
  }
  const auto bytes = encode(Hello{.to_qpn = remote_.qpn,
                                  .to_token = remote_.first_psn,
                                  .from_qpn = own_.qpn,
                                  .from_token = own_.first_psn,
                                  .attempt = attempts_});
  const ssize_t sent = ::send(next_->socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent != static_cast<ssize_t>(bytes.size())) {
    lost_next(now);
    return;
  }
  next_->greeted = true;
}

void Sender::welcomed(const Notice& notice, Nanos now) {
  const std::uint64_t before = queue_.first_frame();
  if (!queue_.resume(notice.frames, own_.qpn, context_.completions)) {
    end(Status::kRemoteOperation);  // it has lost what its kernel had acknowledged
    return;
  }
  current_ = std::exchange(next_, std::nullopt);
  current_->give_up_at = kNever;
  current_->welcomed_at = now;
  measured_at_ = 0;
  acknowledged_now_ = 0;
  writable_ = true;
  if (queue_.first_frame() != before || queue_.empty()) progress_at_ = now;
  looked_at_ = now;
}

/// The connection that was to follow has not become one.
void Sender::lost_next(Nanos now) {
  const std::uint16_t port = next_->port;
  close(next_);
  ++timeouts_;
  if (std::exchange(changing_, false)) {  // the one before goes on
    context_.completions.push_back(
        {.kind = Completion::Kind::kPortChanged, .status = Status::kRetryExceeded, .qpn = own_.qpn, .imm = port});
    return;
  }
  pause(now);
}

/// Whether `current_` has brought something to the peer, or has lasted.
bool Sender::of_use(Nanos now) const { return acknowledged_now_ > 0 || now - current_->welcomed_at >= kFirstTry; }

/// A connection that was of use is followed by another one at once. A peer that ends each as soon as it has welcomed it
/// gets no faster than one that welcomes none.
void Sender::lost_current(Nanos now) {
  ++timeouts_;
  const bool use = of_use(now);
  leave_current();
  if (use) failures_ = 0;
  if (next_) return;
  if (use) {
    retry(now);
  } else {
    pause(now);
  }
}

/// Closes the connection. If its port is being changed, the QP has the new one from now on.
void Sender::leave_current() {
  former_ = former_ + state_of(current_->socket.get());
  state_ = {.smoothed_rtt = state_.smoothed_rtt, .min_rtt = state_.min_rtt, .window_bytes = state_.window_bytes};
  close(current_);
  writable_ = false;
  if (!std::exchange(changing_, false)) return;
  port_ = next_->port;
  context_.completions.push_back({.kind = Completion::Kind::kPortChanged, .qpn = own_.qpn, .imm = port_});
}

void Sender::retry(Nanos now) {
  if (open(port_, now) != 0) pause(now);
}

void Sender::pause(Nanos now) {
  retry_at_ = now + (kFirstPause << std::min(2 * failures_, 2 * kMostDoublings + 1));
  ++failures_;
}

// -- sending ----------------------------------------------------------------------------------------------------------

std::size_t Sender::send(std::size_t most) {
  if (!writable()) return 0;
  queue_.gather(context_.batch, most);
  msghdr message{};
  message.msg_iov = context_.batch.pieces.data();
  message.msg_iovlen = context_.batch.used;
  const ssize_t sent = ::sendmsg(current_->socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    // A failed connection is found by its event.
    if (errno != EINTR) writable_ = false;
    return 0;
  }
  const auto bytes = static_cast<std::size_t>(sent);
  writable_ = bytes == context_.batch.bytes;
  queue_.handed_over(bytes);
  return bytes;
}

/// Takes what the peer has acknowledged. Whether there was anything.
bool Sender::look(Nanos now) {
  if (!current_) return false;
  const std::uint64_t left = unacknowledged(current_->socket.get());
  const std::uint64_t stream = queue_.stream_bytes();
  const std::uint64_t arrived = left < stream ? stream - left : 0;
  if (arrived <= acknowledged_now_) return false;
  acknowledged_ += arrived - acknowledged_now_;
  acknowledged_now_ = arrived;
  // The kernel of a process that is stopped goes on acknowledging.
  if (!queue_.awaits_answer()) progressed(now);
  queue_.acknowledge(arrived, own_.qpn, context_.completions);
  return true;
}

void Sender::progressed(Nanos now) {
  progress_at_ = now;
  silences_ = 0;
  silent_at_ = now + timeout();
}

void Sender::tick(Nanos now) {
  if (ended_) return;
  if (next_ && now >= next_->give_up_at) lost_next(now);
  if (now >= retry_at_) retry(now);
  if (queue_.empty()) return;
  if (now >= (queue_.awaited() ? looked_at_ + kLookEvery : seldom_look_at())) {
    if (look(now) && now - measured_at_ >= kMeasureEvery) {
      measure(now);
      sampled_at_ = now;
    }
    looked_at_ = now;
  }
  if (!queue_.empty() && now >= silent_at_) watch_silence(now);
}

/// The peer has acknowledged nothing, or has not answered, for a timeout.
void Sender::watch_silence(Nanos now) {
  if (now - progress_at_ >= context_.settings.retry_time) {
    end(Status::kRetryExceeded);
    return;
  }
  if (current_ && !queue_.awaited() && now - progress_at_ < kPutOff) {
    silent_at_ = now + timeout();
    return;
  }
  ++silences_;
  silent_at_ = now + timeout();
  measure(now);
  // Where nothing is in flight, the peer has no room: its thread has been busy, and the path is not to blame.
  if (!current_ || state_.in_flight) ++timeouts_;
}

Nanos Sender::timeout() const {
  const Nanos least = std::max(context_.min_timeout, kTimeoutRoundTrips * state_.smoothed_rtt);
  const Nanos most = std::max(least, std::min(kMaxAckTimeout, context_.settings.retry_time / kMinTries));
  return std::min(most, least << std::min(silences_, 10U));
}

Nanos Sender::deadline() const {
  if (ended_) return kNever;
  Nanos when = std::min(retry_at_, next_ ? next_->give_up_at : kNever);
  if (queue_.empty()) return when;
  if (queue_.awaits_answer() && acknowledged_now_ == queue_.stream_bytes()) return std::min(when, silent_at_);
  return std::min({when, silent_at_, seldom_look_at()});
}

Nanos Sender::seldom_look_at() const {
  return looked_at_ + std::clamp((looked_at_ - progress_at_) / 2, kShortestWait, kLongestWait);
}

// -- the end ----------------------------------------------------------------------------------------------------------

/// The QP has failed.
void Sender::end(Status status) {
  const bool waiting = !queue_.empty();
  if (!waiting) {
    context_.completions.push_back({.kind = Completion::Kind::kQpFailed, .status = status, .qpn = own_.qpn});
  }
  fail(status);
}

void Sender::fail(Status status) {
  failed_ = true;
  stop();
  queue_.fail(status, own_.qpn, context_.completions);
}

void Sender::stop() {
  if (current_) {
    look(progress_at_);
    leave_current();
  }
  ended_ = true;
  close(next_);
}

// -- measurements
// -------------------------------------------------------------------------------------------------------

void Sender::measure(Nanos now) const {
  if (!current_) return;
  measured_at_ = now;
  state_ = state_of(current_->socket.get());
}

PathEstimate Sender::estimate(Nanos now) const {
  // A path that was slow a while ago may be fast now: an idle lane without recent samples is tried again.
  const bool unknown = queue_.empty() && now - sampled_at_ > kFresh;
  return {.smoothed_rtt = unknown ? 0 : std::max(state_.smoothed_rtt, silence(now)),
          .fresh_until = sampled_at_ + kFresh,
          .window = static_cast<float>(std::max(1.0, state_.window_bytes / std::max(1U, remote_.path_mtu))),
          .app_limited = current_ && writable_ && queue_.all_handed_over()};
}

void Sender::add_to(QpStatistics& statistics, Nanos now) const {
  if (now - measured_at_ >= kMeasureEvery) measure(now);
  const TcpState sum = former_ + state_;
  statistics.port = port_;
  statistics.smoothed_rtt = state_.smoothed_rtt;
  statistics.min_rtt = state_.min_rtt;
  statistics.window = state_.window_bytes / std::max(1U, remote_.path_mtu);
  statistics.all_acknowledged = queue_.empty();
  statistics.acknowledged_packets = acknowledged_ / std::max(1U, remote_.path_mtu) + queue_.first_frame();
  QpCounters& counters = statistics.counters;
  counters.tx_packets = sum.segments_sent;
  counters.tx_bytes = queue_.payload_bytes() + sum.bytes_repeated;
  counters.retransmits = sum.repeats;
  counters.timeouts = timeouts_;
  counters.tx_marked = sum.marked;
}

}  // namespace paralet::tcp
