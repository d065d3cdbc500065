// SPDX-License-Identifier: Apache-2.0
#include "transport.hpp"

#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/file_descriptor.hpp"
#include "engine/device.hpp"
#include "messages.hpp"
#include "two_processes.hpp"

namespace paralet::bench {
namespace {

constexpr std::uint32_t kSender = 0x7F000001;    // 127.0.0.1
constexpr std::uint32_t kReceiver = 0x7F000002;  // 127.0.0.2
constexpr std::uint64_t kBytesPerCase = 1ULL << 30;
constexpr std::uint64_t kMessagesPerCase = 30'000;
constexpr unsigned kRoundTrips = 20'000;
constexpr std::size_t kInFlight = 16;

std::uint64_t messages_of(std::uint64_t bytes) {
  return std::clamp<std::uint64_t>(kBytesPerCase / bytes, 1, kMessagesPerCase);
}

Throughput throughput(std::uint64_t message_bytes, const Spent& sender, const Spent& receiver) {
  const auto bytes = static_cast<double>(message_bytes * messages_of(message_bytes));
  return {.gbps = bytes * 8 / static_cast<double>(sender.time),
          .sender_ns_per_byte = static_cast<double>(sender.processor) / bytes,
          .receiver_ns_per_byte = static_cast<double>(receiver.processor) / bytes};
}

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// As much as there is, at once or again and again until there is something.
std::size_t spin_read(int fd, std::byte* data, std::size_t bytes) {
  for (;;) {
    const ssize_t n = ::recv(fd, data, bytes, MSG_DONTWAIT);
    if (n > 0) return static_cast<std::size_t>(n);
    check(n < 0 && errno == EAGAIN, "recv");
  }
}

using Buffers = std::vector<std::vector<std::byte>>;

Buffers make_buffers(std::uint64_t bytes) { return {kInFlight, std::vector<std::byte>(bytes, std::byte{1})}; }

// -- ours --------------------------------------------------------------------------------------------------------

DeviceOptions device_options(std::uint32_t address, const std::string& back_end) {
  DeviceOptions options;
  set_back_end(options, back_end);
  options.address = address;
  options.policy.lanes = 8;
  options.busy_poll = 10 * kSecond;
  return options;
}

struct Accepted {
  Device device;
  std::shared_ptr<Connection> connection;

  Accepted(int link, const std::string& back_end) : device(device_options(kReceiver, back_end)) {
    const auto listener = device.listen();
    tell(link, listener->handle);
    connection = accept(device, *listener);
  }
};

struct Connected {
  Device device;
  std::shared_ptr<Connection> connection;

  Connected(int link, const std::string& back_end) : device(device_options(kSender, back_end)) {
    connection = device.connect(hear<decltype(Listener::handle)>(link));
    wait_open(device, *connection);
  }
};

/// Submits requests of `kind` with up to kInFlight in progress; waits for the last.
void stream(Device& device, const std::shared_ptr<Connection>& connection, Request::Kind kind, Buffers& buffers,
            std::uint64_t messages) {
  std::vector<std::shared_ptr<Request>> requests;
  for (auto& buffer : buffers) {
    const bool receive = kind == Request::Kind::kReceive;
    requests.push_back(
        prepared(connection, kind, buffer, receive ? device.register_memory(buffer.data(), buffer.size()) : 0));
  }
  for (std::uint64_t i = 0; i < messages; ++i) {
    if (i >= kInFlight) wait_done(device, *requests[i % kInFlight]);
    device.submit(requests[i % kInFlight]);
  }
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(messages, kInFlight); ++i) wait_done(device, *requests[i]);
}

/// A ping-pong with messages of one size. As is usual with RDMA, receives are posted before their messages arrive, and
/// a send's completion is awaited when its buffer is needed again.
class PingPong {
 public:
  PingPong(Device& device, const std::shared_ptr<Connection>& connection, std::uint64_t bytes, std::size_t ahead)
      : device_(device), in_(ahead * bytes), out_(ahead * bytes), receives_(ahead), sends_(ahead) {
    for (std::size_t i = 0; i < ahead; ++i) {
      const auto in = std::span(in_).subspan(i * bytes, bytes);
      const auto out = std::span(out_).subspan(i * bytes, bytes);
      receives_[i] = prepared(connection, Request::Kind::kReceive, in, device.register_memory(in.data(), in.size()));
      sends_[i] = prepared(connection, Request::Kind::kSend, out);
      device.submit(receives_[i]);
    }
  }
  void send() {
    if (sent_ >= sends_.size()) wait_done(device_, *sends_[sent_ % sends_.size()]);
    device_.submit(sends_[sent_++ % sends_.size()]);
  }
  void receive() { wait_done(device_, *receives_[received_ % receives_.size()]); }
  void receive_another() { device_.submit(receives_[received_++ % receives_.size()]); }
  void finish() {
    for (std::size_t i = sent_ - std::min(sent_, sends_.size()); i < sent_; ++i) {
      wait_done(device_, *sends_[i % sends_.size()]);
    }
  }

 private:
  Device& device_;
  std::vector<std::byte> in_;
  std::vector<std::byte> out_;
  std::vector<std::shared_ptr<Request>> receives_;
  std::vector<std::shared_ptr<Request>> sends_;
  std::size_t sent_ = 0;
  std::size_t received_ = 0;
};

}  // namespace

Throughput our_throughput(std::uint64_t message_bytes, const std::string& back_end) {
  Throughput out;
  with_two_processes(
      [&](int link) {
        Accepted side(link, back_end);
        Buffers buffers = make_buffers(message_bytes);
        const auto receive = [&](std::uint64_t messages) {
          stream(side.device, side.connection, Request::Kind::kReceive, buffers, messages);
        };
        receive(kInFlight);
        tell(link, spent([&] { receive(messages_of(message_bytes)); }));
        hear<char>(link);
      },
      [&](int link) {
        Connected side(link, back_end);
        Buffers buffers = make_buffers(message_bytes);
        const auto send = [&](std::uint64_t messages) {
          stream(side.device, side.connection, Request::Kind::kSend, buffers, messages);
        };
        send(kInFlight);
        const Spent sender = spent([&] { send(messages_of(message_bytes)); });
        out = throughput(message_bytes, sender, hear<Spent>(link));
        tell(link, char{});
      });
  return out;
}

double our_latency_us(std::uint64_t message_bytes, std::size_t ahead, const std::string& back_end) {
  std::vector<double> halves;
  with_two_processes(
      [&](int link) {
        Accepted side(link, back_end);
        PingPong messages(side.device, side.connection, message_bytes, ahead);
        for (unsigned i = 0; i < kRoundTrips; ++i) {
          messages.receive();
          messages.send();
          messages.receive_another();
        }
        messages.finish();
        hear<char>(link);
      },
      [&](int link) {
        Connected side(link, back_end);
        PingPong messages(side.device, side.connection, message_bytes, ahead);
        for (unsigned i = 0; i < kRoundTrips; ++i) {
          const Nanos begin = now();
          messages.send();
          messages.receive();
          halves.push_back(static_cast<double>(now() - begin) / 2e3);
          messages.receive_another();
        }
        messages.finish();
        tell(link, char{});
      });
  return median(halves);
}

// -- TCP ---------------------------------------------------------------------------------------------------------

namespace {

FileDescriptor tcp_accept(int link) {
  const FileDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(kReceiver);
  socklen_t length = sizeof address;
  check(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
            ::listen(listener.get(), 1) == 0 &&
            ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0,
        "listen");
  tell(link, address);
  FileDescriptor accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  check(accepted.valid(), "accept");
  return accepted;
}

FileDescriptor tcp_connect(int link) {
  const auto address = hear<sockaddr_in>(link);
  FileDescriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  check(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0, "connect");
  return fd;
}

void no_delay(const FileDescriptor& fd) {
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/// Connections that `open` makes, whose short messages leave at once.
std::vector<FileDescriptor> several(unsigned connections, const std::function<FileDescriptor()>& open) {
  std::vector<FileDescriptor> out;
  for (unsigned i = 0; i < connections; ++i) no_delay(out.emplace_back(open()));
  return out;
}

}  // namespace

Throughput tcp_throughput(std::uint64_t message_bytes) {
  Throughput out;
  with_two_processes(
      [&](int link) {
        const FileDescriptor fd = tcp_accept(link);
        Buffers buffers = make_buffers(message_bytes);
        const auto receive = [&](std::uint64_t messages) {
          for (std::uint64_t i = 0; i < messages; ++i) {
            read_all(fd.get(), buffers[i % kInFlight].data(), message_bytes);
          }
          tell(fd.get(), char{});
        };
        receive(kInFlight);
        tell(link, spent([&] { receive(messages_of(message_bytes)); }));
      },
      [&](int link) {
        const FileDescriptor fd = tcp_connect(link);
        Buffers buffers = make_buffers(message_bytes);
        const auto send = [&](std::uint64_t messages) {
          for (std::uint64_t i = 0; i < messages; ++i) {
            write_all(fd.get(), buffers[i % kInFlight].data(), message_bytes);
          }
          hear<char>(fd.get());
        };
        send(kInFlight);
        const Spent sender = spent([&] { send(messages_of(message_bytes)); });
        out = throughput(message_bytes, sender, hear<Spent>(link));
      });
  return out;
}

double tcp_latency_us(std::uint64_t message_bytes, unsigned connections) {
  std::vector<std::byte> buffer(message_bytes);
  const auto receive = [&buffer](int fd) {
    for (std::size_t got = 0; got < buffer.size();) got += spin_read(fd, buffer.data() + got, buffer.size() - got);
  };
  std::vector<double> halves;
  with_two_processes(
      [&](int link) {
        const auto fds = several(connections, [link] { return tcp_accept(link); });
        for (unsigned i = 0; i < kRoundTrips; ++i) {
          receive(fds.front().get());
          write_all(fds.back().get(), buffer.data(), buffer.size());
        }
      },
      [&](int link) {
        const auto fds = several(connections, [link] { return tcp_connect(link); });
        for (unsigned i = 0; i < kRoundTrips; ++i) {
          const Nanos begin = now();
          write_all(fds.front().get(), buffer.data(), buffer.size());
          receive(fds.back().get());
          halves.push_back(static_cast<double>(now() - begin) / 2e3);
        }
      });
  return median(halves);
}

}  // namespace paralet::bench
