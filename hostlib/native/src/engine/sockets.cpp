// SPDX-License-Identifier: Apache-2.0
#include "engine/sockets.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/errors.hpp"
#include "base/limits.hpp"

namespace paralet {

Sockets::Sockets() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_.valid()) throw DeviceError("cannot watch sockets: " + error_text(errno));
}

void Sockets::watch(int fd, bool write) {
  epoll_event event{};
  event.events = write ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.fd = fd;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0) epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

bool Sockets::ignore(int fd) {
  epoll_event event{};
  event.events = EPOLLRDHUP;
  event.data.fd = fd;
  return epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0;
}

std::span<const epoll_event> Sockets::ready(std::span<epoll_event> events) const {
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  return events.first(static_cast<std::size_t>(std::max(count, 0)));
}

}  // namespace paralet
