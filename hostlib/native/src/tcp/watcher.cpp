// SPDX-License-Identifier: Apache-2.0
#include "tcp/watcher.hpp"

#include <algorithm>
#include <cerrno>

#include "base/errors.hpp"
#include "base/limits.hpp"

namespace paralet::tcp {

Watcher::Watcher() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_.valid()) throw DeviceError("cannot watch sockets: " + error_text(errno));
}

std::uint64_t Watcher::control(int operation, int socket, std::uint32_t qpn, std::uint32_t events) {
  epoll_event event{};
  event.events = events | EPOLLRDHUP | EPOLLET;
  event.data.u64 = (next_++ << kQpnBits) | qpn;
  return ::epoll_ctl(epoll_.get(), operation, socket, &event) == 0 ? event.data.u64 : 0;
}

std::uint64_t Watcher::add(int socket, std::uint32_t qpn) {
  return control(EPOLL_CTL_ADD, socket, qpn, EPOLLIN | EPOLLOUT);
}

std::uint64_t Watcher::assign(int socket, std::uint32_t qpn) { return control(EPOLL_CTL_MOD, socket, qpn, EPOLLIN); }

void Watcher::remove(int socket) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket, nullptr); }

std::span<const epoll_event> Watcher::ready(std::span<epoll_event> out) const {
  const int count = ::epoll_wait(epoll_.get(), out.data(), static_cast<int>(out.size()), 0);
  return out.first(static_cast<std::size_t>(std::max(count, 0)));
}

}  // namespace paralet::tcp
