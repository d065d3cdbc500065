// SPDX-License-Identifier: Apache-2.0
#include "tcp/receiver.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "tcp/lane_socket.hpp"

namespace paralet::tcp {
namespace {

// Of shorter SENDs the sender has copies, so nobody waits for their acknowledgement.
constexpr std::size_t kCopiedBytes = 2048;

}  // namespace

Receiver::~Receiver() {
  drop(current_);
  drop(next_);
  reader_.restart();
}

void Receiver::drop(std::optional<Greeting>& connection) {
  if (!connection) return;
  watcher_.remove(connection->socket.get());
  reset(connection->socket);
  connection.reset();
}

void Receiver::greet(Greeting&& greeting) {
  drop(next_);
  attempt_ = greeting.hello.attempt;
  greeting.watched = watcher_.assign(greeting.socket.get(), qpn_);
  next_ = std::move(greeting);
  if (current_) ready_ = true;
}

bool Receiver::owns(std::uint64_t watched) const {
  return (current_ && current_->watched == watched) || (next_ && next_->watched == watched);
}

void Receiver::on_event(std::uint64_t watched, std::uint32_t events) {
  if (next_ && next_->watched == watched) return;  // it is read once it is the current one
  ready_ = true;
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) ended_ = true;
}

bool Receiver::receive(Scratch& scratch, std::size_t most) {
  const std::uint64_t before = reader_.frames();
  if (!carry_.empty() || stalled()) {
    const std::size_t taken = reader_.take(carry_);
    carry_.erase(carry_.begin(), carry_.begin() + static_cast<std::ptrdiff_t>(taken));
  }
  for (std::size_t left = most; ready_ && left > 0 && !stalled() && !reader_.refused();) {
    ready_ = read_some(scratch, left);
  }
  if (const auto status = reader_.refused()) {
    refuse(*status);
  } else if (reader_.take_ping() && answers_ && current_) {
    say({.kind = Notice::Kind::kAnswer, .frames = reader_.frames()});
  }
  awaited_ = reader_.take_written() || awaited_;  // the last flowlet of a message may be short
  owed_ += reader_.frames() - before;
  alone_ += reader_.frames() - before;
  if (!ready_ && current_) acknowledge_read();
  if (!stalled() && !ready_) turn_over();
  return ready_ && !stalled();
}

/// The connection is drained. The peer waits for the acknowledgement of payloads, and not of short messages. Those are
/// put off only on a lane that carries nothing else: in between, payloads would be acknowledged later, too.
void Receiver::acknowledge_read() {
  if (std::exchange(awaited_, false)) {
    owed_ = alone_ = 0;
    later_ = false;
    acknowledge_at_once(current_->socket.get());
  } else if (alone_ < kAlone) {
    owed_ = 0;  // the kernel has acknowledged them
  } else if (owed_ >= kOwedMost) {
    acknowledge();
  } else if (owed_ > 0 && !std::exchange(later_, true)) {
    acknowledge_later(current_->socket.get());
  }
}

void Receiver::acknowledge() {
  if (std::exchange(owed_, 0) == 0 || !current_) return;
  acknowledge_at_once(current_->socket.get());
  acknowledge_later(current_->socket.get());
  later_ = true;
}

/// One system call. False when the socket is empty or the connection has ended.
bool Receiver::read_some(Scratch& scratch, std::size_t& left) {
  if (!current_) return false;
  std::array<iovec, 2> pieces;
  std::size_t used = 0;
  const std::span<std::byte> target = reader_.target(scratch.sink);
  if (reader_.refused()) return true;
  if (!target.empty()) pieces[used++] = {.iov_base = target.data(), .iov_len = target.size()};
  pieces[used++] = {.iov_base = scratch.staging.data(), .iov_len = scratch.staging.size()};
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = used;
  const ssize_t result = ::recvmsg(current_->socket.get(), &message, 0);
  if (result <= 0) {
    if (result < 0 && errno == EINTR) return true;
    if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    drop(current_);  // its sender connects again, or the peer is gone
    return false;
  }
  const auto got = static_cast<std::size_t>(result);
  left -= std::min(left, got);
  const std::size_t placed = std::min(got, target.size());
  if (placed > 0) reader_.placed(placed);
  awaited_ = awaited_ || got > kCopiedBytes;
  const std::span<const std::byte> rest(scratch.staging.data(), got - placed);
  const std::size_t taken = rest.empty() ? 0 : reader_.take(rest);
  if (taken < rest.size() && !reader_.refused()) {
    carry_.assign(rest.begin() + static_cast<std::ptrdiff_t>(taken), rest.end());
  }
  // A short count means that the socket is empty; the next byte is another event.
  return ended_ || got == target.size() + scratch.staging.size();
}

/// The connection is drained. Ends the QP's receiving where that was asked for, or goes on with the next connection.
void Receiver::turn_over() {
  if (stopping_) {
    drop(current_);
    drop(next_);
    reader_.restart();
    if (!std::exchange(stopped_, true)) {
      completions_.push_back({.kind = Completion::Kind::kStopped, .qpn = qpn_, .imm = reader_.messages()});
    }
    return;
  }
  if (!next_ || reader_.refused()) return;
  drop(current_);
  reader_.restart();
  current_ = std::exchange(next_, std::nullopt);
  ended_ = false;
  ready_ = true;
  welcomed_at_ = reader_.frames();
  say({.kind = Notice::Kind::kWelcome, .frames = welcomed_at_});
}

/// Tells the sender why, and ends the connection.
void Receiver::refuse(Status status) {
  if (next_) {  // the sender has left the one before, and hears only this one
    drop(current_);
    current_ = std::exchange(next_, std::nullopt);
  }
  if (current_) {
    say({.kind = Notice::Kind::kRefused, .status = status, .frames = reader_.frames()});
    // No reset: it would overtake the notice. What has arrived is read first, or the kernel would reset all the same.
    std::array<std::byte, 4096> nowhere;
    for (int i = 0; i < 1024 && ::recv(current_->socket.get(), nowhere.data(), nowhere.size(), 0) > 0; ++i) {
    }
    ::shutdown(current_->socket.get(), SHUT_WR);
    watcher_.remove(current_->socket.get());
    current_.reset();
  }
  carry_.clear();
  ready_ = false;
}

void Receiver::say(const Notice& notice) {
  const auto bytes = encode(notice);
  // Few and short: they fit, or the connection is gone, or its other end does not read them.
  [[maybe_unused]] const ssize_t sent =
      ::send(current_->socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  acknowledge_at_once(current_->socket.get());
  owed_ = alone_ = 0;
  later_ = false;
}

void Receiver::deafen() {
  if (current_) tcp::deafen(current_->socket.get());
}

void Receiver::stop() {
  if (std::exchange(stopping_, true)) return;
  drop(next_);
  deafen();
  ready_ = true;
}

}  // namespace paralet::tcp
