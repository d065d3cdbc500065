// SPDX-License-Identifier: Apache-2.0
#include "path_client/client.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/errors.hpp"
#include "base/limits.hpp"
#include "base/log.hpp"
#include "base/socket_address.hpp"

namespace paralet::path_client {
namespace {

// With several addresses, since a standby takes over after about a second:
constexpr Nanos kPingWithStandby = 500 * kMillisecond;
constexpr Nanos kSilenceWithStandby = 1500 * kMillisecond;

constexpr Nanos kLasts = 1 * kSecond;  // a connection of this age works, and is not one of many that fail

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

Nanos Backoff::next() {
  const Nanos most = std::exchange(next_, std::min(most_, next_ + next_ / 4));
  return most / 2 + static_cast<Nanos>(random_.uniform() * static_cast<double>(most) / 2);
}

Client::Client(const Options& options, Hello hello, Mailbox& mailbox, std::function<void()> wake)
    : options_(options),
      services_(resolve(options.service)),
      open_channel_(channels(options.tls)),
      mailbox_(mailbox),
      wake_(std::move(wake)),
      probing_{.from = hello.device.address,
               .tcp = hello.tcp,
               .limits = {.rate = options.probe_rate, .attempts = 1}},  // `Asks` and `Watches` count attempts
      session_(std::move(hello), options.job),
      backoff_(options.reconnect_least, options.reconnect_most, random_u32()),
      changed_at_(now()) {
  if (!options_.log) options_.log = log_to_standard_error;
  if (services_.size() > 1) {
    options_.ping_every = std::min(options_.ping_every, kPingWithStandby);
    options_.silence = std::min(options_.silence, kSilenceWithStandby);
  }
  thread_ = start_thread([this] { run(); });
}

void Client::stop() {
  stop_ = true;
  mailbox_.wake();
  if (thread_.joinable()) thread_.join();
}

void Client::run() {
  while (!stop_) {
    Nanos t = now();
    for (Event event; mailbox_.next_event(event);) session_.on_event(event, out_);
    pass_orders();
    check_time(t);
    if (probes_) out_ += probes_->take_lines();
    flush();
    share();
    std::array<pollfd, 2> waited{{{.fd = mailbox_.wake_fd(), .events = POLLIN, .revents = 0},
                                  {.fd = socket_.get(), .events = POLLIN, .revents = 0}}};
    if (state_ == State::kConnecting) waited[1].events = POLLOUT;
    if (state_ == State::kConnected && !wire_.empty()) waited[1].events = POLLIN | POLLOUT;
    if (!mailbox_.fall_asleep()) continue;
    const Nanos rest = std::clamp<Nanos>(deadline() - now(), 0, kSecond);
    const timespec timeout{.tv_sec = rest / kSecond, .tv_nsec = rest % kSecond};
    ::ppoll(waited.data(), waited.size(), &timeout, nullptr);
    mailbox_.wake_up();
    if (waited[1].revents == 0) continue;
    t = now();
    if (state_ == State::kConnecting) {
      on_connecting(t);
    } else if (state_ == State::kConnected && (waited[1].revents & ~POLLOUT) != 0) {
      on_readable(t);
    }
  }
  probes_.reset();
  socket_.reset();
  set_connected(false, now());
}

// -- the connection -----------------------------------------------------------------------------------------------

void Client::start_connecting(Nanos now) {
  state_ = State::kConnecting;
  since_ = now;
  const Address& service = services_[service_];
  socket_ = FileDescriptor(::socket(family_of(service.address), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const SocketAddress to(service.address, service.port);
  if (!socket_.valid() || (::connect(socket_.get(), to.get(), to.length()) != 0 && errno != EINPROGRESS)) {
    drop(std::strerror(errno), now);
  }
}

void Client::on_connecting(Nanos now) {
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) {
    drop(std::strerror(error), now);
    return;
  }
  try {
    channel_ = open_channel_(services_[service_].host);
  } catch (const DeviceError& wrong) {
    drop(wrong.what(), now);
    return;
  }
  state_ = State::kConnected;
  since_ = received_at_ = sent_at_ = pinged_at_ = now;
  unanswered_at_ = kNever;
  session_.on_connected(out_);
}

void Client::on_readable(Nanos now) {
  std::array<char, 65536> chunk;
  const ssize_t got = ::recv(socket_.get(), chunk.data(), chunk.size(), 0);
  if (got < 0 && would_block()) return;
  if (got <= 0) {
    drop(got == 0 ? "it closed the connection" : std::strerror(errno), now);
    return;
  }
  received_at_ = now;
  unanswered_at_ = kNever;
  const std::size_t searched = in_.size();
  try {
    channel_->receive({chunk.data(), static_cast<std::size_t>(got)}, in_);
  } catch (const ChannelError& wrong) {
    flush();  // tells the service why
    if (state_ == State::kConnected) drop(wrong.what(), now);
    return;
  }
  on_lines(searched, now);
}

/// Handles what the service has said, in which a line may end from `searched` on.
void Client::on_lines(std::size_t searched, Nanos now) {
  std::size_t begin = 0;
  for (std::size_t end = in_.find('\n', searched); end != std::string::npos; end = in_.find('\n', begin)) {
    const std::string_view line(in_.data() + begin, end - begin);
    const Session::Verdict verdict = session_.on_line(line, now, out_);
    if (verdict == Session::Verdict::kSayOlder) {
      disconnect(now);
      attempt_at_ = now;
      return;
    }
    const std::string warning = session_.take_warning();
    if (verdict == Session::Verdict::kDrop) {
      drop(warning, now);
      return;
    }
    if (!warning.empty()) warn_once(warning);
    if (session_.welcome() && !connected_) {
      connections_.fetch_add(1, std::memory_order_relaxed);
      set_connected(true, now);
    }
    if (const auto wish = session_.take_wish()) {
      if (options_.probe_rate > 0) start_probes(*wish);
      session_.announce_open(out_);
    }
    pass_orders();
    begin = end + 1;
  }
  in_.erase(0, begin);
  if (in_.size() > kMaxLine) drop("it sent a line of more than 1 MiB", now);
}

void Client::start_probes(const Welcome& wish) {
  probing_.limits.router_rate = wish.router_rate;
  probing_.limits.router_burst = wish.router_burst;
  try {
    probes_ = std::make_unique<ProbeThread>(probing_, probe_totals_, [this] { mailbox_.wake(); });
  } catch (const DeviceError& error) {
    options_.log(std::string("paths are not probed: ") + error.what());
    return;
  }
  session_.offer_probes(options_.probe_rate, out_);
}

void Client::pass_orders() {
  for (ProbeOrder& order : session_.take_orders()) probes_->order(std::move(order));
}

void Client::disconnect(Nanos now) {
  probes_.reset();
  state_ = State::kOff;
  socket_.reset();
  channel_.reset();
  in_.clear();
  out_.clear();
  wire_.clear();
  set_connected(false, now);
  session_.on_disconnected();
}

void Client::drop(const std::string& why, Nanos now) {
  // Only a connection that worked resets the back-off. Where no service leads, one that holds hosts does not.
  if (connected_ && has_lasted(now)) {
    backoff_.reset();
    tried_ = 0;
  }
  disconnect(now);
  service_ = (service_ + 1) % services_.size();
  const bool all_tried = ++tried_ >= services_.size();
  if (all_tried) tried_ = 0;
  attempt_at_ = all_tried ? now + backoff_.next() : now;
  if (all_tried && !std::exchange(loss_logged_, true)) {
    options_.log("no path service at " + options_.service + ", lanes use ECMP until it answers: " + why);
  }
}

void Client::set_connected(bool connected, Nanos now) {
  if (connected_.exchange(connected) != connected) changed_at_.store(now, std::memory_order_relaxed);
}

void Client::flush() {
  if (state_ != State::kConnected) {
    out_.clear();  // the session repeats it on the next connection
    return;
  }
  try {
    channel_->send(out_, wire_);
  } catch (const ChannelError& wrong) {
    drop(wrong.what(), now());
    return;
  }
  while (!wire_.empty()) {
    const ssize_t sent = ::send(socket_.get(), wire_.data(), wire_.size(), MSG_NOSIGNAL);
    if (sent < 0) {
      if (!would_block()) {
        drop(std::strerror(errno), now());
      } else if (wire_.size() > kMaxUnsent) {
        drop("it does not read what it is sent", now());
      }
      return;
    }
    sent_at_ = now();
    wire_.erase(0, static_cast<std::size_t>(sent));
  }
}

// -- time ---------------------------------------------------------------------------------------------------------

void Client::check_time(Nanos now) {
  switch (state_) {
    case State::kOff:
      if (now >= attempt_at_) start_connecting(now);
      break;
    case State::kConnecting:
      if (now >= since_ + kConnectTime) drop("it does not answer", now);
      break;
    case State::kConnected:
      if (!session_.welcome() && now >= welcome_by()) {
        drop("it does not say welcome", now);
      } else if (now >= silent_at()) {
        drop("it has been silent for too long", now);
      } else if (session_.welcome()) {
        session_.on_time(now, out_);
        if (now >= ping_at()) {
          out_ += encode_ping(++nonce_);
          pinged_at_ = now;
          if (unanswered_at_ == kNever) unanswered_at_ = now;
        }
        // A service that goes away again at once is not logged each time.
        if (has_lasted(now) && std::exchange(loss_logged_, false)) {
          options_.log("the path service at " + options_.service + " answers again");
        }
      }
      break;
  }
}

bool Client::has_lasted(Nanos now) const { return now - since_ >= std::min(kLasts, options_.reconnect_most); }

/// Time of the next ping, which shows both sides that the other one is alive.
Nanos Client::ping_at() const { return std::max(std::min(sent_at_, received_at_), pinged_at_) + options_.ping_every; }

/// When the service counts as gone, unless it says something. The time runs from a ping, so a host that was held up
/// itself takes nothing for silence.
Nanos Client::silent_at() const {
  if (unanswered_at_ == kNever) return kNever;
  return unanswered_at_ + std::max(options_.silence - options_.ping_every, options_.ping_every);
}

/// A service that may lead soon says something, `vote` or `wait`; another one may be cut off.
Nanos Client::welcome_by() const {
  return services_.size() == 1 ? since_ + kWelcomeTime
                               : std::min(since_ + kWelcomeTime, received_at_ + options_.silence);
}

Nanos Client::deadline() const {
  switch (state_) {
    case State::kOff:
      return attempt_at_;
    case State::kConnecting:
      return since_ + kConnectTime;
    case State::kConnected:
      break;
  }
  if (!session_.welcome()) return welcome_by();
  return std::min({session_.deadline(), silent_at(), ping_at()});
}

// -- publishing ---------------------------------------------------------------------------------------------------

/// Publishes counters, and new assignments for the data path.
void Client::share() {
  const SessionCounters& c = session_.counters();
  announces_.store(c.announces, std::memory_order_relaxed);
  assigns_.store(c.assigns, std::memory_order_relaxed);
  pushes_.store(c.pushes, std::memory_order_relaxed);
  assigned_.store(c.assigned, std::memory_order_relaxed);
  stale_.store(c.stale, std::memory_order_relaxed);
  invalid_.store(c.invalid, std::memory_order_relaxed);
  if (auto changes = session_.take_changes()) {
    mailbox_.publish(std::move(changes));
    wake_();
  }
}

void Client::warn_once(const std::string& what) {
  if (!std::exchange(invalid_logged_, true)) {
    options_.log("the path service at " + options_.service +
                 " sent an invalid message; further ones are only counted: " + what);
  }
}

ClientCounters Client::counters() const {
  return {.connected = connected_.load(),
          .since = changed_at_.load(std::memory_order_relaxed),
          .connections = connections_.load(std::memory_order_relaxed),
          .announces = announces_.load(std::memory_order_relaxed),
          .assigns = assigns_.load(std::memory_order_relaxed),
          .pushes = pushes_.load(std::memory_order_relaxed),
          .assigned = assigned_.load(std::memory_order_relaxed),
          .stale = stale_.load(std::memory_order_relaxed),
          .invalid = invalid_.load(std::memory_order_relaxed) + probe_totals_.refused.load(std::memory_order_relaxed),
          .probes_sent = probe_totals_.sent.load(std::memory_order_relaxed),
          .probes_answered = probe_totals_.answered.load(std::memory_order_relaxed),
          .probes_limited = probe_totals_.limited.load(std::memory_order_relaxed),
          .probes_mismatched = probe_totals_.mismatched.load(std::memory_order_relaxed),
          .ports_moved = probe_totals_.moved.load(std::memory_order_relaxed)};
}

}  // namespace paralet::path_client
