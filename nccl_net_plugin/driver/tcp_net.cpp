// SPDX-License-Identifier: Apache-2.0
// Messages over plain TCP as NCCL's Socket transport sends them. A control socket carries the sizes and messages of up
// to kInlineBytes; longer messages are cut into chunks that alternate between kStreams data sockets. There are no
// helper threads: posting and testing move data, between the caller's memory and the sockets without a copy.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <system_error>
#include <vector>

#include "base/file_descriptor.hpp"
#include "net.hpp"

namespace paralet::driver {
namespace {

constexpr unsigned kStreams = 4;
constexpr std::size_t kInlineBytes = 128;
constexpr std::size_t kMinChunk = 64 << 10;
constexpr unsigned kRequests = 32;
constexpr std::size_t kControlBuffer = 8 << 10;
using Size = std::uint32_t;

[[noreturn]] void fail(const char* what) {
  const int why = errno;
  const std::string sentence = std::string("tcp: ") + what + ": " + std::system_category().message(why);
  if (why == EPIPE || why == ECONNRESET) throw PeerLost(sentence);
  throw NetError(sentence);
}

void check(bool ok, const char* what) {
  if (!ok) fail(what);
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

/// Sends what the socket takes now; 0 bytes when it is not ready.
std::size_t send_some(int fd, const std::byte* data, std::size_t bytes) {
  const ssize_t n = ::send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  check(n >= 0 || would_block(), "send");
  return n < 0 ? 0 : static_cast<std::size_t>(n);
}

std::size_t receive_some(int fd, std::byte* data, std::size_t bytes) {
  const ssize_t n = ::recv(fd, data, bytes, MSG_DONTWAIT);
  if (n == 0) throw PeerLost("tcp: the peer closed the connection");
  check(n > 0 || would_block(), "recv");
  return n < 0 ? 0 : static_cast<std::size_t>(n);
}

void no_delay(int fd) {
  const int on = 1;
  check(::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0, "TCP_NODELAY");
}

struct Comm;

struct Request {
  Comm* comm = nullptr;
  std::byte* data = nullptr;
  std::size_t bytes = 0;          ///< of a receive: its capacity until the size is known
  std::size_t left = 0;           ///< bytes that the data sockets still have to move
  std::uint64_t control_end = 0;  ///< of a send: position in the control stream at which it is done
  bool used = false;
  bool sized = false;
};

struct Chunk {
  Request* request;
  std::byte* data;
  std::size_t left;
};

/// A data socket and the chunks that it carries, in order.
struct Stream {
  FileDescriptor fd;
  std::deque<Chunk> chunks;

  template <typename Move>
  void progress(Move move) {
    while (!chunks.empty()) {
      Chunk& chunk = chunks.front();
      const std::size_t n = move(fd.get(), chunk.data, chunk.left);
      chunk.request->left -= n;
      chunk.data += n;
      chunk.left -= n;
      if (chunk.left > 0) return;
      chunks.pop_front();
    }
  }
};

/// The common part of both directions. A Comm belongs to one thread.
struct Comm {
  FileDescriptor control;
  std::array<Stream, kStreams> streams;
  unsigned next_stream = 0;
  std::array<Request, kRequests> requests;

  virtual ~Comm() = default;
  virtual void progress() = 0;
  [[nodiscard]] virtual bool done(const Request& request) const = 0;

  Request* free_request() {
    const auto free = std::find_if(requests.begin(), requests.end(), [](const Request& r) { return !r.used; });
    return free == requests.end() ? nullptr : &*free;
  }
  /// Cuts a message into chunks, in the same way on both sides.
  void queue_chunks(Request& request) {
    request.left = request.bytes;
    const std::size_t chunk = std::max(kMinChunk, (request.bytes + kStreams - 1) / kStreams);
    for (std::size_t at = 0; at < request.bytes; at += chunk) {
      streams[next_stream].chunks.push_back({&request, request.data + at, std::min(chunk, request.bytes - at)});
      next_stream = (next_stream + 1) % kStreams;
    }
  }
};

struct SendComm final : Comm {
  std::vector<std::byte> control_out;  ///< not yet sent
  std::uint64_t control_sent = 0;

  Request* post(std::byte* data, std::size_t bytes) {
    Request* request = free_request();
    if (request == nullptr) return nullptr;
    *request = {.comm = this, .data = data, .bytes = bytes, .used = true, .sized = true};
    const auto size = static_cast<Size>(bytes);
    const auto* raw = reinterpret_cast<const std::byte*>(&size);
    control_out.insert(control_out.end(), raw, raw + sizeof size);
    if (bytes <= kInlineBytes) {
      control_out.insert(control_out.end(), data, data + bytes);
    } else {
      queue_chunks(*request);
    }
    request->control_end = control_sent + control_out.size();
    progress();
    return request;
  }
  void progress() override {
    if (!control_out.empty()) {
      const std::size_t n = send_some(control.get(), control_out.data(), control_out.size());
      control_out.erase(control_out.begin(), control_out.begin() + static_cast<std::ptrdiff_t>(n));
      control_sent += n;
    }
    for (Stream& stream : streams) stream.progress(send_some);
  }
  [[nodiscard]] bool done(const Request& request) const override {
    return request.left == 0 && control_sent >= request.control_end;
  }
};

struct ReceiveComm final : Comm {
  std::deque<Request*> unsized;  ///< receives without a size, in the order in which they were posted
  std::array<std::byte, kControlBuffer> control_in{};  ///< bytes [parsed, filled) belong to later messages
  std::size_t parsed = 0;
  std::size_t filled = 0;

  Request* post(std::byte* data, std::size_t capacity) {
    Request* request = free_request();
    if (request == nullptr) return nullptr;
    *request = {.comm = this, .data = data, .bytes = capacity, .used = true};
    unsized.push_back(request);
    return request;
  }
  void progress() override {
    if (!unsized.empty()) {
      parse();
      if (!unsized.empty()) {
        filled += receive_some(control.get(), control_in.data() + filled, control_in.size() - filled);
        parse();
      }
    }
    for (Stream& stream : streams) stream.progress(receive_some);
  }
  void parse() {
    Size size = 0;
    while (!unsized.empty() && filled - parsed >= sizeof size) {
      Request& request = *unsized.front();
      std::memcpy(&size, &control_in[parsed], sizeof size);
      if (size > request.bytes)
        throw NetError("tcp: a message of " + std::to_string(size) + " bytes does not fit the receive of " +
                       std::to_string(request.bytes));
      const std::size_t inlined = size <= kInlineBytes ? size : 0;
      if (filled - parsed < sizeof size + inlined) break;
      request.bytes = size;
      request.sized = true;
      if (size <= kInlineBytes) {
        std::memcpy(request.data, control_in.data() + parsed + sizeof size, inlined);
      } else {
        queue_chunks(request);
      }
      parsed += sizeof size + inlined;
      unsized.pop_front();
    }
    std::memmove(control_in.data(), control_in.data() + parsed, filled - parsed);
    filled -= std::exchange(parsed, 0);
  }
  [[nodiscard]] bool done(const Request& request) const override { return request.sized && request.left == 0; }
};

/// The first bytes on each socket: the listener's token and the socket's number (kStreams is the control socket).
struct Hello {
  std::uint64_t token;
  std::uint64_t index;
};

struct Connecting {
  std::array<FileDescriptor, kStreams + 1> sockets;
  unsigned next = 0;  ///< socket that sends its Hello next
};

/// The content of a handle.
struct Target {
  sockaddr_in address;
  std::uint64_t token;
};
static_assert(sizeof(Target) <= Handle::kBytes);

/// Accepts one connection.
struct ListenComm {
  FileDescriptor fd;
  std::uint64_t token = 0;
  std::vector<FileDescriptor> unidentified;  ///< accepted, without a Hello so far
  std::array<FileDescriptor, kStreams + 1> sockets;
  unsigned identified = 0;
};

template <typename C>
C* with_sockets(std::array<FileDescriptor, kStreams + 1>& sockets) {
  auto comm = std::make_unique<C>();
  for (unsigned i = 0; i < kStreams; ++i) comm->streams[i].fd = std::move(sockets[i]);
  comm->control = std::move(sockets[kStreams]);
  return comm.release();
}

class TcpNet final : public Net {
 public:
  explicit TcpNet(const std::string& address) {
    address_.sin_family = AF_INET;
    if (::inet_pton(AF_INET, address.c_str(), &address_.sin_addr) != 1) {
      throw NetError("tcp: '" + address + "' is not an IPv4 address such as 10.0.0.1");
    }
  }

  [[nodiscard]] std::string name() const override { return "TCP, " + std::to_string(kStreams) + " sockets"; }

  void* listen(Handle& handle) override {
    auto comm = std::make_unique<ListenComm>();
    comm->fd = new_socket();
    Target target{.address = address_, .token = 0};
    socklen_t length = sizeof target.address;
    auto* name = reinterpret_cast<sockaddr*>(&target.address);
    check(::bind(comm->fd.get(), name, length) == 0 && ::listen(comm->fd.get(), kStreams + 1) == 0 &&
              ::getsockname(comm->fd.get(), name, &length) == 0,
          "listen");
    check(::getrandom(&target.token, sizeof target.token, 0) == sizeof target.token, "getrandom");
    comm->token = target.token;
    std::memcpy(handle.bytes.data(), &target, sizeof target);
    return comm.release();
  }

  void* connect(Handle& handle) override {
    Target target{};
    std::memcpy(&target, handle.bytes.data(), sizeof target);
    Connecting& connecting = connecting_[&handle];
    if (!connecting.sockets[0].valid()) connecting = begin_connect(target.address);
    for (; connecting.next < connecting.sockets.size(); ++connecting.next) {
      const int fd = connecting.sockets[connecting.next].get();
      pollfd ready{.fd = fd, .events = POLLOUT, .revents = 0};
      if (::poll(&ready, 1, 0) == 0) return nullptr;
      int error = 0;
      socklen_t length = sizeof error;
      check(::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0, "connect");
      errno = error;
      check(error == 0, "connect");
      const Hello hello{target.token, connecting.next};
      // A new socket always has room for these few bytes.
      check(send_some(fd, reinterpret_cast<const std::byte*>(&hello), sizeof hello) == sizeof hello, "connect");
    }
    void* comm = with_sockets<SendComm>(connecting.sockets);
    connecting_.erase(&handle);
    return comm;
  }

  void* accept(void* listen_comm) override {
    auto& listener = *static_cast<ListenComm*>(listen_comm);
    for (;;) {
      FileDescriptor fd(::accept4(listener.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd.valid()) break;
      no_delay(fd.get());
      listener.unidentified.push_back(std::move(fd));
    }
    check(would_block() || errno == ECONNABORTED, "accept");
    std::erase_if(listener.unidentified, [&](FileDescriptor& fd) { return identify(listener, fd); });
    return listener.identified < listener.sockets.size() ? nullptr : with_sockets<ReceiveComm>(listener.sockets);
  }

  void close_listen(void* listen_comm) override { delete static_cast<ListenComm*>(listen_comm); }
  void close_send(void* send_comm) override { delete static_cast<SendComm*>(send_comm); }
  void close_receive(void* receive_comm) override { delete static_cast<ReceiveComm*>(receive_comm); }

  void* register_memory(void*, void*, std::size_t) override { return nullptr; }
  void deregister_memory(void*, void*) override {}

  void* isend(void* send_comm, void* data, std::size_t bytes, int, void*) override {
    return static_cast<SendComm*>(send_comm)->post(static_cast<std::byte*>(data), bytes);
  }
  void* irecv(void* receive_comm, void* data, std::size_t bytes, int, void*) override {
    return static_cast<ReceiveComm*>(receive_comm)->post(static_cast<std::byte*>(data), bytes);
  }
  std::optional<std::size_t> test(void* request) override {
    auto& own = *static_cast<Request*>(request);
    if (!own.comm->done(own)) own.comm->progress();
    if (!own.comm->done(own)) return std::nullopt;
    own.used = false;
    return own.bytes;
  }

 private:
  static FileDescriptor new_socket() {
    FileDescriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    check(fd.valid(), "socket");
    return fd;
  }

  [[nodiscard]] Connecting begin_connect(const sockaddr_in& target) const {
    Connecting connecting;
    for (FileDescriptor& fd : connecting.sockets) {
      fd = new_socket();
      no_delay(fd.get());
      // Bound to the device's address, so that the traffic uses the device's link.
      check(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof address_) == 0, "bind");
      check(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&target), sizeof target) == 0 || errno == EINPROGRESS,
            "connect");
    }
    return connecting;
  }

  /// Reads the Hello. Returns whether the socket is settled: kept, or to be dropped because of a wrong token or number.
  static bool identify(ListenComm& listener, FileDescriptor& fd) {
    Hello hello{};
    const ssize_t n = ::recv(fd.get(), &hello, sizeof hello, MSG_PEEK);
    if (n < 0 && would_block()) return false;
    if (n > 0 && n < static_cast<ssize_t>(sizeof hello)) return false;
    if (n <= 0 || hello.token != listener.token || hello.index >= listener.sockets.size() ||
        listener.sockets[hello.index].valid()) {
      return true;
    }
    check(::recv(fd.get(), &hello, sizeof hello, 0) == sizeof hello, "recv");
    listener.sockets[hello.index] = std::move(fd);
    ++listener.identified;
    return true;
  }

  sockaddr_in address_{};
  std::map<const Handle*, Connecting>
      connecting_;  ///< kept here because the handle comes from outside and must not hold pointers
};

}  // namespace

std::unique_ptr<Net> tcp_net(const std::string& address) { return std::make_unique<TcpNet>(address); }

}  // namespace paralet::driver
