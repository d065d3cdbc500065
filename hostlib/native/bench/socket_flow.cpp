// SPDX-License-Identifier: Apache-2.0
#include "socket_flow.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "base/socket_address.hpp"
#include "two_processes.hpp"

namespace paralet::bench {
namespace {

constexpr std::uint64_t kLeastPart = 64 * 1024;  // MIN_CHUNKSIZE of net_socket.cc

FileDescriptor tcp_socket(const IpAddress& address) {
  FileDescriptor out(::socket(family_of(address), SOCK_STREAM | SOCK_CLOEXEC, 0));
  check(out.valid(), "socket");
  return out;
}

void send_at_once(const FileDescriptor& connection) {
  const int on = 1;
  ::setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace

std::vector<FileDescriptor> accept_sockets(int link, const IpAddress& address, const SocketOptions& options) {
  const FileDescriptor listener = tcp_socket(address);
  SocketAddress local(address, 0);
  check(::bind(listener.get(), local.get(), local.length()) == 0 &&
            ::listen(listener.get(), static_cast<int>(options.connections())) == 0 &&
            ::getsockname(listener.get(), local.get(), local.length_place()) == 0,
        "listen");
  tell(link, local);
  std::vector<FileDescriptor> out;
  for (unsigned i = 0; i < options.connections(); ++i) {
    out.emplace_back(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    check(out.back().valid(), "accept");
    send_at_once(out.back());
  }
  return out;
}

std::vector<FileDescriptor> connect_sockets(int link, const IpAddress& address, const SocketOptions& options) {
  const auto remote = hear<SocketAddress>(link);
  std::vector<FileDescriptor> out;
  for (unsigned i = 0; i < options.connections(); ++i) {
    out.push_back(tcp_socket(address));
    check(::connect(out.back().get(), remote.get(), remote.length()) == 0, "connect");
    send_at_once(out.back());
  }
  return out;
}

SocketComm::SocketComm(std::vector<FileDescriptor> connections, const SocketOptions& options)
    : options_(options),
      part_most_(std::max(kLeastPart, (options.message_bytes + connections.size() - 1) / connections.size())),
      parts_((options.message_bytes + part_most_ - 1) / part_most_),
      buffers_(options.window, std::vector<std::byte>(options.message_bytes, std::byte{1})),
      done_(options.window) {
  for (FileDescriptor& connection : connections) ways_.push_back({.connection = std::move(connection)});
}

SocketComm::~SocketComm() {
  stopped_ = true;
  finish();
}

void SocketComm::start(std::uint64_t messages) {
  for (std::size_t i = 0; i < ways_.size(); ++i) {
    ways_[i].part = i;
    ways_[i].moved = 0;
  }
  completed_ = 0;
  wanted_ = messages;
  posted_ = std::min<std::uint64_t>(messages, options_.window);
  for (unsigned t = 0; t < options_.threads; ++t) {
    threads_.emplace_back([this, t] {
      try {
        for (bool over = false; !over && !stopped_;) {
          over = true;
          for (std::size_t i = t; i < ways_.size(); i += options_.threads) over = advance(ways_[i]) && over;
        }
      } catch (const std::system_error&) {
        stopped_ = true;
      }
    });
  }
}

bool SocketComm::progress() {
  if (options_.blocking) {
    for (; completed_ < wanted_; ++completed_) {
      auto& buffer = buffers_[completed_ % options_.window];
      const int fd = ways_.front().connection.get();
      options_.sends ? write_all(fd, buffer.data(), buffer.size()) : read_all(fd, buffer.data(), buffer.size());
    }
    return true;
  }
  if (options_.threads == 0) {
    for (Way& way : ways_) advance(way);
  } else if (stopped_) {
    throw std::runtime_error("a connection was lost");
  }
  while (completed_ < wanted_ && done_[completed_ % options_.window].load(std::memory_order_acquire) == parts_) {
    done_[completed_ % options_.window] = 0;
    ++completed_;
    posted_.store(std::min<std::uint64_t>(wanted_, completed_ + options_.window), std::memory_order_release);
  }
  return completed_ == wanted_;
}

void SocketComm::finish() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

std::size_t SocketComm::part_bytes(std::uint64_t index) const {
  return std::min(part_most_, options_.message_bytes - index * part_most_);
}

/// Moves what the socket takes or has. True when the connection has carried all of its parts.
bool SocketComm::advance(Way& way) {
  const std::uint64_t message = way.part / parts_;
  if (message >= wanted_) return true;
  if (message >= posted_.load(std::memory_order_acquire)) return false;
  const std::uint64_t index = way.part % parts_;
  const std::size_t bytes = part_bytes(index);
  std::byte* const data = buffers_[message % options_.window].data() + index * part_most_ + way.moved;
  const int fd = way.connection.get();
  const ssize_t n = options_.sends ? ::send(fd, data, bytes - way.moved, MSG_DONTWAIT | MSG_NOSIGNAL)
                                   : ::recv(fd, data, bytes - way.moved, MSG_DONTWAIT);
  check(n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)), options_.sends ? "send" : "recv");
  way.moved += n > 0 ? static_cast<std::size_t>(n) : 0;
  if (way.moved == bytes) {
    done_[message % options_.window].fetch_add(1, std::memory_order_release);
    way.part += ways_.size();
    way.moved = 0;
  }
  return false;
}

}  // namespace paralet::bench
