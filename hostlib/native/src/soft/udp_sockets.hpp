// SPDX-License-Identifier: Apache-2.0
// The UDP sockets of the soft back end. One receives on port 4791; one per UDP source port sends and never receives.
// No privilege is needed.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/socket_address.hpp"
#include "soft/fault_injector.hpp"

namespace paralet {

/// Requested size of send and receive buffers; without CAP_NET_ADMIN the kernel grants up to net.core.[rw]mem_max.
inline constexpr std::size_t kSocketBufferBytes = 8 << 20;
/// Bytes of receive buffer that the kernel grants this process. Throws DeviceError when no socket can be opened.
std::size_t granted_receive_buffer();

/// A run of packets from one source that arrived together. All but the last have the same size.
struct Arrival {
  std::span<std::byte> bytes;
  std::size_t segment_bytes = 0;
  PacketOrigin origin;
};

/// An arrival whose bytes are in the caller's memory.
struct Scattered {
  std::size_t bytes = 0;
  std::size_t segment_bytes = 0;
  PacketOrigin origin;
};

class ReceiveSocket {
 public:
  /// Binds `address`:4791, or a port of the kernel's choice when another process has it or `roce_port` is false. Throws
  /// DeviceError.
  explicit ReceiveSocket(const IpAddress& address, bool roce_port = true);
  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] int fd() const { return socket_.get(); }
  static constexpr std::size_t kBatch = 8;
  /// Receives up to min(limit, kBatch) runs that have arrived. Valid until the next call.
  std::span<const Arrival> receive(std::size_t limit = kBatch);

  /// Receives the next run into `pieces`, which have room for any datagram. Nothing when none has arrived.
  std::optional<Scattered> receive_into(std::span<iovec> pieces);

 private:
  struct alignas(cmsghdr) Control {
    /// UDP_GRO, IP_TOS or IPV6_TCLASS, SCM_TIMESTAMPNS.
    std::array<char, CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(timespec))> bytes;
  };
  FileDescriptor socket_;
  std::uint16_t port_ = 0;
  std::vector<std::byte> buffers_;
  std::array<mmsghdr, kBatch> messages_{};
  std::array<iovec, kBatch> pieces_{};
  std::array<SocketAddress, kBatch> sources_{};
  std::array<Control, kBatch> controls_{};
  std::array<Arrival, kBatch> arrivals_{};
  std::size_t used_ = kBatch;  ///< messages whose headers the kernel has written to
  bool full_ = true;           ///< the last call filled its limit, so more may have arrived
};

/// What the packets of a sending socket have in common.
struct SendingAs {
  std::uint16_t port = 0;           ///< UDP source port
  std::uint8_t traffic_class = 0;   ///< IPv4 TOS byte
  std::vector<IpAddress> segments;  ///< IPv6 nodes that they pass (RFC 8754); none: routers choose the path
  auto operator<=>(const SendingAs&) const = default;  // NOLINT(modernize-use-nullptr): of what the compiler writes
};

/// Sending sockets, shared and reference-counted.
class SendSockets {
 public:
  explicit SendSockets(const IpAddress& address) : address_(address) {}
  /// The socket for such packets, opened on first use. -1 when another program holds the port. Each success needs a
  /// release. Throws DeviceError when the process cannot open another socket, bind it, or set what its packets have.
  int acquire(const SendingAs& as);
  void release(const SendingAs& as);

 private:
  struct Entry {
    FileDescriptor socket;
    unsigned users = 0;
  };
  IpAddress address_;
  std::map<SendingAs, Entry> entries_;
};

/// kBusy: the kernel's queue is full. kRefused: packets of this form, as too long ones (EMSGSIZE, EINVAL, EIO).
/// kFailed: any other error, which may pass. errno tells the last two.
enum class SendResult : std::uint8_t { kSent, kBusy, kRefused, kFailed };

/// Sends one batch: `segment_bytes` is the size of each packet but the last, 0 for a single packet.
SendResult send_batch(int fd, const IpAddress& address, std::uint16_t port, std::span<iovec> pieces,
                      std::uint16_t segment_bytes);

}  // namespace paralet
