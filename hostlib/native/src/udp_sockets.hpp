// SPDX-License-Identifier: Apache-2.0
// The UDP sockets of the soft back end. One receives on port 4791; one per UDP source port sends and never receives.
// No privilege is needed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "fault_injector.hpp"
#include "file_descriptor.hpp"

struct iovec;

namespace paralet {

class ReceiveSocket {
 public:
  /// Binds `address`:4791, or a port of the kernel's choice when another process has it. Throws DeviceError.
  explicit ReceiveSocket(std::uint32_t address);
  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] int fd() const { return socket_.get(); }
  /// Takes what has arrived, up to a fixed batch, and hands over packet by packet. Number of packets.
  std::size_t receive(const FaultInjector::Deliver& deliver);

 private:
  static constexpr std::size_t kBatch = 16;
  static constexpr std::size_t kBufferBytes = 65536;
  FileDescriptor socket_;
  std::uint16_t port_ = 0;
  std::vector<std::byte> buffers_;
};

/// Sockets by UDP source port, shared and counted.
class SendSockets {
 public:
  explicit SendSockets(std::uint32_t address) : address_(address) {}
  /// The socket of `port`, opened on first use. -1 when another program holds the port. Each success needs a release.
  int acquire(std::uint16_t port);
  void release(std::uint16_t port);

 private:
  struct Entry {
    FileDescriptor socket;
    unsigned users = 0;
  };
  std::uint32_t address_;
  std::map<std::uint16_t, Entry> entries_;
};

enum class SendResult : std::uint8_t { kSent, kBusy, kFailed };

/// Sends one batch: `segment_bytes` is the size of each packet but the last, 0 for a single packet.
SendResult send_batch(int fd, std::uint32_t address, std::uint16_t port, std::span<iovec> pieces,
                      std::uint16_t segment_bytes);

}  // namespace paralet
