// SPDX-License-Identifier: Apache-2.0
#include "tcp/greeter.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/errors.hpp"

namespace paralet::tcp {
namespace {

// A peer says hello as soon as it is connected. Somebody who connects and is silent must not keep others out.
constexpr Nanos kGreetingTime = 5 * kSecond;
constexpr std::size_t kMaxWaiting = 4096;
constexpr Nanos kAcceptAgain = 100 * kMillisecond;  // after the process ran out of descriptors

}  // namespace

Greeter::Greeter(const SocketSettings& settings, Watcher& watcher)
    : settings_(settings),
      watcher_(watcher),
      listener_(listen(settings, port_)),
      watched_(watcher.add(listener_.get(), 0)) {
  if (watched_ == 0) throw DeviceError("cannot watch the socket that listens on " + format_address(settings.address));
}

bool Greeter::on_event(std::uint64_t watched, Nanos now, std::optional<Greeting>& greeted) {
  if (watched == watched_) {
    accept_all(now);
    return true;
  }
  const auto found = std::ranges::find(waiting_, watched, &Waiting::watched);
  if (found == waiting_.end()) return false;
  greeted = read(static_cast<std::size_t>(found - waiting_.begin()));
  return true;
}

void Greeter::accept_all(Nanos now) {
  accept_again_ = kNever;
  for (;;) {
    Accepted accepted = accept(listener_.get(), settings_);
    if (!accepted.socket.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) accept_again_ = now + kAcceptAgain;
      return;
    }
    if (waiting_.size() == kMaxWaiting) drop_oldest();
    const std::uint64_t watched = watcher_.add(accepted.socket.get(), 0);
    if (watched == 0) continue;
    waiting_.push_back({.accepted = std::move(accepted), .watched = watched, .until = now + kGreetingTime});
  }
}

void Greeter::drop_oldest() {
  ++refused_;
  watcher_.remove(waiting_.front().accepted.socket.get());
  reset(waiting_.front().accepted.socket);
  waiting_.pop_front();
}

/// Reads no byte beyond the hello. The connection is closed when it ended or said something else.
std::optional<Greeting> Greeter::read(std::size_t index) {
  Waiting& waiting = waiting_[index];
  const ssize_t got =
      ::recv(waiting.accepted.socket.get(), waiting.bytes.data() + waiting.received, kHelloBytes - waiting.received, 0);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return std::nullopt;
  waiting.received = static_cast<std::uint8_t>(waiting.received + std::max<ssize_t>(got, 0));
  if (got > 0 && waiting.received < kHelloBytes) return std::nullopt;
  Waiting done = std::move(waiting);
  waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(index));
  const auto hello = got > 0 ? decode_hello(done.bytes) : std::nullopt;
  if (!hello) {
    ++refused_;
    watcher_.remove(done.accepted.socket.get());
    reset(done.accepted.socket);
    return std::nullopt;
  }
  return Greeting{.socket = std::move(done.accepted.socket),
                  .watched = done.watched,
                  .address = done.accepted.address,
                  .port = done.accepted.port,
                  .hello = *hello};
}

void Greeter::tick(Nanos now) {
  while (!waiting_.empty() && now >= waiting_.front().until) drop_oldest();
  if (now >= accept_again_) accept_all(now);
}

Nanos Greeter::deadline() const { return std::min(accept_again_, waiting_.empty() ? kNever : waiting_.front().until); }

}  // namespace paralet::tcp
