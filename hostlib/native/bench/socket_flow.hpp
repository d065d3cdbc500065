// SPDX-License-Identifier: Apache-2.0
// Messages of one direction over TCP connections, cut into parts as NCCL's Socket transport cuts them (net_socket.cc).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/ip_address.hpp"

namespace paralet::bench {

struct SocketOptions {
  unsigned threads = 0;     ///< that move data; 0: the caller does
  unsigned per_thread = 1;  ///< connections
  std::uint64_t message_bytes = 0;
  unsigned window = 1;    ///< messages in progress
  bool blocking = false;  ///< the caller's calls block until they have moved a whole message
  bool sends = false;

  [[nodiscard]] unsigned connections() const { return threads == 0 ? per_thread : threads * per_thread; }
};

/// The connections of one direction. The accepting side tells the other by `link` where it listens.
std::vector<FileDescriptor> accept_sockets(int link, const IpAddress& address, const SocketOptions& options);
std::vector<FileDescriptor> connect_sockets(int link, const IpAddress& address, const SocketOptions& options);

/// One side of a direction. Threads poll, as NCCL's do while requests are in progress.
class SocketComm {
 public:
  SocketComm(std::vector<FileDescriptor> connections, const SocketOptions& options);
  SocketComm(const SocketComm&) = delete;
  SocketComm& operator=(const SocketComm&) = delete;
  ~SocketComm();
  /// Begins to move this number of messages.
  void start(std::uint64_t messages);
  /// Goes on. True when all messages have been moved. Throws std::runtime_error when a connection is lost.
  bool progress();
  /// Waits for the threads.
  void finish();

 private:
  /// The parts that a connection carries: every n-th of all messages, where n is the number of connections.
  struct Way {
    FileDescriptor connection;
    std::uint64_t part = 0;  ///< the next, counted over all messages
    std::size_t moved = 0;   ///< bytes of it
  };

  bool advance(Way& way);
  [[nodiscard]] std::size_t part_bytes(std::uint64_t index) const;

  SocketOptions options_;
  std::vector<Way> ways_;
  std::uint64_t part_most_ = 0;  ///< bytes of all parts of a message but the last
  std::uint64_t parts_ = 0;      ///< of a message
  std::vector<std::vector<std::byte>> buffers_;
  std::vector<std::atomic<std::uint64_t>> done_;  ///< parts of the messages in progress, by message modulo window
  std::atomic<std::uint64_t> posted_{0};          ///< messages that may be moved
  std::atomic<bool> stopped_{false};              ///< a connection was lost, or nobody waits any more
  std::uint64_t completed_ = 0;
  std::uint64_t wanted_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace paralet::bench
