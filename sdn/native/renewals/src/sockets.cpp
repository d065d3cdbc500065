// SPDX-License-Identifier: Apache-2.0
#include "sockets.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

namespace paralet::renewals {
namespace {

constexpr std::size_t kReceived = 1 << 16;  // bytes at once
constexpr int kMostEvents = 256;
constexpr int kMostDropped = 16;  // times kReceived

bool is_later(int error) { return error == EAGAIN || error == EINTR; }

}  // namespace

Sockets::Sockets() : epoll_(epoll_create1(EPOLL_CLOEXEC)), received_(kReceived) {
  if (epoll_ < 0) throw std::system_error(errno, std::generic_category(), "epoll_create1");
}

Sockets::~Sockets() {
  for (const auto& each : sockets_) close(each.second->descriptor);
  close(epoll_);
}

void Sockets::add(std::uint64_t number, int descriptor, std::shared_ptr<Host> host) {
  if (sockets_.contains(number)) {
    close(descriptor);
    throw std::invalid_argument("there is a socket of number " + std::to_string(number) + " already");
  }
  auto socket = std::make_unique<Socket>(Socket{number, descriptor, std::move(host), {}});
  epoll_event wanted{EPOLLIN, {.ptr = socket.get()}};
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &wanted) != 0) {
    const int error = errno;
    close(descriptor);
    throw std::system_error(error, std::generic_category(), "epoll_ctl");
  }
  sockets_[number] = std::move(socket);
}

void Sockets::remove(std::uint64_t number) {
  const auto found = sockets_.find(number);
  if (found == sockets_.end()) return;
  epoll_ctl(epoll_, EPOLL_CTL_DEL, found->second->descriptor, nullptr);
  close(found->second->descriptor);
  sockets_.erase(found);
}

void Sockets::read(std::uint64_t number, bool on) {
  const auto found = sockets_.find(number);
  if (found == sockets_.end() || found->second->reads == on) return;
  found->second->reads = on;
  await(*found->second);
}

std::size_t Sockets::send(std::uint64_t number, std::string_view data) {
  const auto found = sockets_.find(number);
  if (found == sockets_.end()) return 0;
  Socket& socket = *found->second;
  const bool waits = !socket.unsent.empty();
  socket.unsent += data;
  if (!waits) {
    flush(socket);
    if (!socket.unsent.empty()) await(socket);
  }
  return socket.unsent.size();
}

std::size_t Sockets::unsent(std::uint64_t number) const {
  const auto found = sockets_.find(number);
  return found == sockets_.end() ? 0 : found->second->unsent.size();
}

void Sockets::drop(std::uint64_t number) {
  const auto found = sockets_.find(number);
  if (found == sockets_.end()) return;
  for (int times = 0; times < kMostDropped; ++times) {
    if (recv(found->second->descriptor, received_.data(), received_.size(), MSG_DONTWAIT) <= 0) return;
  }
}

std::vector<Event> Sockets::round(double now_s, bool may_answer, int most, double most_s, Done& done) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(most_s);
  if (rest_.empty()) {
    std::array<epoll_event, kMostEvents> ready;  // NOLINT(cppcoreguidelines-pro-type-member-init): the kernel writes it
    const int count = epoll_wait(epoll_, ready.data(), std::min(most, kMostEvents), 0);
    for (int i = 0; i < count; ++i) {
      const auto& each = ready[static_cast<std::size_t>(i)];
      rest_.push_back({static_cast<Socket*>(each.data.ptr)->number, each.events});
    }
  }
  std::vector<Event> events;
  std::size_t handled = 0;
  while (handled < rest_.size()) {
    const auto& [number, ready] = rest_[handled++];
    const auto found = sockets_.find(number);  // the caller may have removed it since
    if (found == sockets_.end() || found->second->has_failed) continue;
    handle(*found->second, ready, now_s, may_answer, events, done);
    if (std::chrono::steady_clock::now() >= until) break;
  }
  rest_.erase(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(handled));
  return events;
}

void Sockets::handle(Socket& socket, std::uint32_t ready, double now_s, bool may_answer, std::vector<Event>& events,
                     Done& done) {
  int error = 0;
  if ((ready & EPOLLOUT) != 0 && !socket.unsent.empty()) {
    flush(socket);
    if (socket.unsent.empty()) {
      await(socket);
      events.push_back({socket.number, Event::Kind::sent, {}});
    }
  }
  const bool is_gone = (ready & (EPOLLERR | EPOLLHUP)) != 0;
  if (socket.reads && (ready & ~EPOLLOUT) != 0) {
    error = receive(socket, now_s, may_answer, events, done);
  } else if (is_gone) {
    error = ECONNRESET;
  }
  if (error == 0) return;
  socket.has_failed = true;
  epoll_ctl(epoll_, EPOLL_CTL_DEL, socket.descriptor, nullptr);
  events.push_back({socket.number, Event::Kind::failed, {}, error});
}

void Sockets::await(Socket& socket) const {
  if (socket.has_failed) return;
  epoll_event wanted{};
  wanted.events = (socket.reads ? EPOLLIN : 0U) | (socket.unsent.empty() ? 0U : EPOLLOUT);
  wanted.data.ptr = &socket;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, socket.descriptor, &wanted);
}

void Sockets::flush(Socket& socket) const {
  std::size_t sent = 0;
  while (sent < socket.unsent.size()) {
    const auto more = ::send(socket.descriptor, socket.unsent.data() + sent, socket.unsent.size() - sent,
                             MSG_DONTWAIT | MSG_NOSIGNAL);
    if (more < 0) {
      if (!is_later(errno)) sent = socket.unsent.size();  // the connection is gone, which the next `round` finds
      break;
    }
    sent += static_cast<std::size_t>(more);
  }
  socket.unsent.erase(0, sent);
}

int Sockets::receive(Socket& socket, double now_s, bool may_answer, std::vector<Event>& events, Done& done) {
  const auto size = recv(socket.descriptor, received_.data(), received_.size(), MSG_DONTWAIT);
  if (size < 0) return is_later(errno) ? 0 : errno;
  if (size == 0) {
    socket.reads = false;
    await(socket);
    events.push_back({socket.number, Event::Kind::ended, {}});
    return 0;
  }
  const std::string_view data(received_.data(), static_cast<std::size_t>(size));
  std::size_t answered = 0;
  if (may_answer && socket.unsent.empty()) {
    answer_.clear();
    answered = socket.host->answer(socket.number, data, now_s, answer_, done);
    if (!answer_.empty()) {
      const auto sent = ::send(socket.descriptor, answer_.data(), answer_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent >= 0 ? static_cast<std::size_t>(sent) < answer_.size() : is_later(errno)) {
        socket.unsent = answer_.substr(static_cast<std::size_t>(std::max<ssize_t>(sent, 0)));
        await(socket);
        events.push_back({socket.number, Event::Kind::waits, {}});
      }
    }
  } else {
    socket.host->is_clear = false;
  }
  if (answered < data.size()) events.push_back({socket.number, Event::Kind::said, std::string(data.substr(answered))});
  return 0;
}

}  // namespace paralet::renewals
