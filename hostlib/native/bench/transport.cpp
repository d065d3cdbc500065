// SPDX-License-Identifier: Apache-2.0
// Measures the soft transport between two processes on loopback beside one plain TCP stream, in turn, and prints one
// JSON object per case and repetition. Neither side runs Python.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "clock.hpp"
#include "device.hpp"
#include "errors.hpp"
#include "file_descriptor.hpp"
#include "signal.hpp"

namespace {

using namespace paralet;  // NOLINT(google-build-using-namespace): a program of one file

constexpr std::uint32_t kSender = 0x7F000001;    // 127.0.0.1
constexpr std::uint32_t kReceiver = 0x7F000002;  // 127.0.0.2
constexpr std::array<std::uint64_t, 7> kSizes = {64, 512, 4096, 65536, 262144, 1U << 20, 4U << 20};
constexpr std::uint64_t kBytesPerCase = 256ULL << 20;
constexpr std::uint64_t kMessagesPerCase = 30'000;
constexpr unsigned kRoundTrips = 2'000;
constexpr std::size_t kInFlight = 16;

struct Case {
  std::uint64_t bytes;
  std::uint64_t messages;
};

Case throughput_case(std::uint64_t bytes) {
  return {bytes, std::clamp<std::uint64_t>(kBytesPerCase / bytes, 1, kMessagesPerCase)};
}

void check(bool ok, const char* what) {
  if (!ok) throw std::system_error(errno, std::generic_category(), what);
}

void write_all(int fd, const std::byte* data, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = ::write(fd, data, bytes);
    check(n > 0, "write");
    data += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

void read_all(int fd, std::byte* data, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = ::read(fd, data, bytes);
    check(n > 0, "read");
    data += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

/// Runs `child` in a second process with one end of a socket pair and `parent` here with the other.
double with_two_processes(const std::function<void(int)>& child, const std::function<double(int)>& parent) {
  std::array<int, 2> pair{};
  check(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) == 0, "socketpair");
  const pid_t pid = ::fork();
  check(pid >= 0, "fork");
  if (pid == 0) {
    ::close(pair[0]);
    try {
      child(pair[1]);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "paralet-bench: receiver: %s\n", error.what());
      std::_Exit(1);
    }
    std::_Exit(0);
  }
  ::close(pair[1]);
  const FileDescriptor link(pair[0]);
  double result = 0;
  try {
    result = parent(link.get());
  } catch (...) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    throw;
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (status != 0) throw std::runtime_error("the receiving process failed");
  return result;
}

// -- ours --------------------------------------------------------------------------------------------------------

DeviceOptions device_options(std::uint32_t address) {
  DeviceOptions options;
  options.address = address;
  options.policy.lanes = 8;
  return options;
}

void wait_done(const Request& request) {
  completion_signal().wait([&] { return request.state.load() != Request::State::kPending; }, std::nullopt);
  if (request.state.load() == Request::State::kFailed) throw TransportError(request.error);
}

std::shared_ptr<Request> start(Device& device, const std::shared_ptr<Connection>& connection, Request::Kind kind,
                               std::vector<std::byte>& buffer, std::uint32_t rkey = 0) {
  auto request = std::make_shared<Request>();
  request->kind = kind;
  request->connection = connection;
  request->data = buffer.data();
  request->length = buffer.size();
  request->rkey = rkey;
  device.submit(request);
  return request;
}

struct Accepted {
  Device device;
  std::shared_ptr<Connection> connection;

  explicit Accepted(int link) : device(device_options(kReceiver)) {
    const auto listener = device.listen();
    write_all(link, listener->handle.data(), listener->handle.size());
    completion_signal().wait(
        [&] {
          const std::lock_guard lock(listener->mutex);
          return !listener->arrived.empty();
        },
        std::nullopt);
    connection = listener->arrived.front();
  }
};

struct Connected {
  Device device;
  std::shared_ptr<Connection> connection;

  explicit Connected(int link) : device(device_options(kSender)) {
    std::array<std::byte, handshake::kHandleBytes> handle;
    read_all(link, handle.data(), handle.size());
    connection = device.connect(handle);
    completion_signal().wait([&] { return connection->state != Connection::State::kConnecting; }, std::nullopt);
    if (connection->failure != Failure::kNone) throw TransportError(connection->error);
  }
};

/// `kind` again and again with up to kInFlight under way; waits for the last.
void stream(Device& device, const std::shared_ptr<Connection>& connection, Request::Kind kind, const Case& c) {
  std::vector<std::vector<std::byte>> buffers(kInFlight, std::vector<std::byte>(c.bytes, std::byte{1}));
  std::vector<std::uint32_t> rkeys;
  rkeys.reserve(kInFlight);
  for (auto& buffer : buffers) {
    rkeys.push_back(kind == Request::Kind::kReceive ? device.register_memory(buffer.data(), buffer.size()) : 0);
  }
  std::vector<std::shared_ptr<Request>> under_way(kInFlight);
  for (std::uint64_t i = 0; i < c.messages; ++i) {
    const std::size_t slot = i % kInFlight;
    if (under_way[slot]) wait_done(*under_way[slot]);
    under_way[slot] = start(device, connection, kind, buffers[slot], rkeys[slot]);
  }
  for (const auto& request : under_way) {
    if (request) wait_done(*request);
  }
}

double our_throughput_gbps(const Case& c) {
  return with_two_processes(
      [&](int link) {
        Accepted side(link);
        stream(side.device, side.connection, Request::Kind::kReceive, c);
        std::byte end{};
        read_all(link, &end, 1);
      },
      [&](int link) {
        Connected side(link);
        stream(side.device, side.connection, Request::Kind::kSend, {c.bytes, std::min<std::uint64_t>(c.messages, 1)});
        const Nanos begin = now();
        stream(side.device, side.connection, Request::Kind::kSend, {c.bytes, c.messages - 1});
        const Nanos end = now();
        const std::byte stop{};
        write_all(link, &stop, 1);
        return static_cast<double>(c.bytes * (c.messages - 1) * 8) / static_cast<double>(end - begin);
      });
}

double our_latency_us(std::uint64_t bytes) {
  std::vector<std::byte> in(bytes);
  std::vector<std::byte> out(bytes);
  return with_two_processes(
      [&](int link) {
        Accepted side(link);
        for (unsigned i = 0; i < kRoundTrips; ++i) {
          const auto ping = start(side.device, side.connection, Request::Kind::kReceive, in);
          wait_done(*ping);
          wait_done(*start(side.device, side.connection, Request::Kind::kSend, out));
        }
        std::byte end{};
        read_all(link, &end, 1);
      },
      [&](int link) {
        Connected side(link);
        std::vector<double> halves;
        for (unsigned i = 0; i < kRoundTrips; ++i) {
          const Nanos begin = now();
          const auto pong = start(side.device, side.connection, Request::Kind::kReceive, in);
          const auto ping = start(side.device, side.connection, Request::Kind::kSend, out);
          wait_done(*pong);
          halves.push_back(static_cast<double>(now() - begin) / 2e3);
          wait_done(*ping);
        }
        const std::byte stop{};
        write_all(link, &stop, 1);
        std::nth_element(halves.begin(), halves.begin() + kRoundTrips / 2, halves.end());
        return halves[kRoundTrips / 2];
      });
}

// -- TCP ---------------------------------------------------------------------------------------------------------

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
  write_all(link, reinterpret_cast<const std::byte*>(&address), sizeof address);
  FileDescriptor accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  check(accepted.valid(), "accept");
  return accepted;
}

FileDescriptor tcp_connect(int link) {
  sockaddr_in address{};
  read_all(link, reinterpret_cast<std::byte*>(&address), sizeof address);
  FileDescriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  check(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "connect");
  return fd;
}

void no_delay(const FileDescriptor& fd) {
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

double tcp_throughput_gbps(const Case& c) {
  const std::uint64_t total = c.bytes * c.messages;
  return with_two_processes(
      [&](int link) {
        const FileDescriptor fd = tcp_accept(link);
        std::vector<std::byte> buffer(1U << 20);
        for (std::uint64_t left = total; left > 0;) {
          const ssize_t n = ::read(fd.get(), buffer.data(), buffer.size());
          check(n > 0, "read");
          left -= static_cast<std::uint64_t>(n);
        }
        write_all(fd.get(), buffer.data(), 1);
      },
      [&](int link) {
        const FileDescriptor fd = tcp_connect(link);
        std::vector<std::byte> buffer(c.bytes, std::byte{1});
        const Nanos begin = now();
        for (std::uint64_t i = 0; i < c.messages; ++i) write_all(fd.get(), buffer.data(), buffer.size());
        read_all(fd.get(), buffer.data(), 1);
        return static_cast<double>(total * 8) / static_cast<double>(now() - begin);
      });
}

double tcp_latency_us(std::uint64_t bytes) {
  std::vector<std::byte> buffer(bytes);
  return with_two_processes(
      [&](int link) {
        const FileDescriptor fd = tcp_accept(link);
        no_delay(fd);
        for (unsigned i = 0; i < kRoundTrips; ++i) {
          read_all(fd.get(), buffer.data(), bytes);
          write_all(fd.get(), buffer.data(), bytes);
        }
      },
      [&](int link) {
        const FileDescriptor fd = tcp_connect(link);
        no_delay(fd);
        std::vector<double> halves;
        for (unsigned i = 0; i < kRoundTrips; ++i) {
          const Nanos begin = now();
          write_all(fd.get(), buffer.data(), bytes);
          read_all(fd.get(), buffer.data(), bytes);
          halves.push_back(static_cast<double>(now() - begin) / 2e3);
        }
        std::nth_element(halves.begin(), halves.begin() + kRoundTrips / 2, halves.end());
        return halves[kRoundTrips / 2];
      });
}

// -- report ------------------------------------------------------------------------------------------------------

std::string size_name(std::uint64_t bytes) {
  if (bytes >= 1U << 20) return std::to_string(bytes >> 20) + " MiB";
  if (bytes >= 1024) return std::to_string(bytes >> 10) + " KiB";
  return std::to_string(bytes) + " B";
}

void print(const char* metric, std::uint64_t bytes, const char* unit, double ours, double peer) {
  std::printf(R"({"metric": "%s", "case": "%s", "unit": "%s", "ours": %.6g, "peer": %.6g, "peer_name": "TCP"})"
              "\n",
              metric, size_name(bytes).c_str(), unit, ours, peer);
  std::fflush(stdout);
}

unsigned repetitions(int argc, char** argv) {
  if (argc == 1) return 5;
  unsigned value = 0;
  if (argc == 3 && std::string_view(argv[1]) == "--repetitions") {
    const std::string_view text(argv[2]);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size() && value > 0) return value;
  }
  std::fprintf(stderr, "usage: paralet-bench [--repetitions N]   (N > 0; default 5)\n");
  std::exit(2);
}

}  // namespace

int main(int argc, char** argv) {
  const unsigned times = repetitions(argc, argv);
  try {
    for (unsigned i = 0; i < times; ++i) {
      for (const std::uint64_t bytes : kSizes) {
        const Case c = throughput_case(bytes);
        print("throughput", bytes, "Gbit/s", our_throughput_gbps(c), tcp_throughput_gbps(c));
      }
      for (const std::uint64_t bytes : {std::uint64_t{8}, std::uint64_t{4096}}) {
        print("latency", bytes, "us", our_latency_us(bytes), tcp_latency_us(bytes));
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "paralet-bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
