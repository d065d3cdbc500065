// SPDX-License-Identifier: Apache-2.0
// The connections of one rank to the others of its group. Not thread-safe: the group's executor uses them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/header.hpp"
#include "engine/device.hpp"

namespace paralet::collectives {

/// A link or a message on it failed. It ends the group.
struct LinkError {
  Failure failure = Failure::kTransport;
  std::string text;
};

[[nodiscard]] inline bool pending(const Request& request) {
  return request.state.load(std::memory_order_acquire) == Request::State::kPending;
}

/// Short messages into memory that the receiver keeps advertised: they need no receive advertisement of their own, so
/// they take one way through the network. They arrive in order.
class Mailbox {
 public:
  struct Shape {
    std::size_t slots = 0;  ///< messages on their way at a time
    std::size_t slot_bytes = 0;
    [[nodiscard]] std::size_t bytes() const { return 2 * slots * slot_bytes; }
  };

  /// `memory` of shape.bytes() lies at `offset` of the registered region `rkey`. Posts the receives.
  Mailbox(Device& device, const std::shared_ptr<Connection>& connection, std::uint32_t tag, Shape shape,
          std::byte* memory, std::uint32_t rkey, std::uint64_t offset);

  /// False when all slots hold messages that have not arrived yet. The two parts go as one message, and may change
  /// afterwards. Throws LinkError.
  bool send(std::span<const std::byte> head, std::span<const std::byte> rest);
  /// Whether all that was sent has arrived or failed.
  [[nodiscard]] bool sent() const;
  /// The oldest message, nullopt when there is none. Throws LinkError.
  [[nodiscard]] std::optional<std::span<const std::byte>> front() const;
  /// Frees the memory of the oldest message.
  void pop();

 private:
  Device& device_;
  Shape shape_;
  std::vector<std::shared_ptr<Request>> receives_;
  std::vector<std::shared_ptr<Request>> sends_;
  std::size_t next_receive_ = 0;
  std::size_t next_send_ = 0;
};

/// Two connections to another rank: one for mailboxes, whose receives are always open, and one for bulk data. The
/// engine advertises a connection's receives at once only while few are open.
class Link {
 public:
  static constexpr std::size_t kChannels = 2;
  static constexpr std::size_t kMailboxChannel = 0;
  static constexpr std::size_t kBulkChannel = 1;
  static constexpr std::size_t kMailBytes = 8192;  ///< data in a short message

  [[nodiscard]] bool open() const { return mail_.has_value(); }
  [[nodiscard]] Mailbox& mail() { return *mail_; }
  [[nodiscard]] Mailbox& announcements() { return *announcements_; }
  [[nodiscard]] const std::shared_ptr<Connection>& bulk() const { return connections_[kBulkChannel]; }

 private:
  friend class Links;
  std::array<std::shared_ptr<Connection>, kChannels> connections_;
  Nanos wanted_since_ = 0;  ///< when this side began to connect, or to wait for the other side
  /// Tells the side that waits whether the other one lives.
  std::shared_ptr<Connection> watch_;
  Nanos watched_since_ = 0;
  std::array<std::shared_ptr<Request>, kChannels> hellos_;
  std::array<std::array<std::byte, Hello::kBytes>, kChannels> hello_bytes_{};
  std::unique_ptr<std::byte[]> memory_;  // NOLINT(modernize-avoid-c-arrays): not initialised
  std::uint32_t rkey_ = 0;
  std::optional<Mailbox> mail_;
  std::optional<Mailbox> announcements_;
};

/// Of each pair of ranks the lower one connects. If it does not within kWatchAfter, the higher one connects too, only
/// to learn whether the lower rank is alive.
class Links {
 public:
  /// Throws DeviceError.
  Links(std::shared_ptr<Device> device, int rank, int size);
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;
  ~Links();

  [[nodiscard]] const std::array<std::byte, handshake::kHandleBytes>& handle() const { return listener_->handle; }
  /// The handles of all ranks. Throws std::invalid_argument when one is none.
  void set_handles(std::vector<std::array<std::byte, handshake::kHandleBytes>> handles);

  static constexpr Nanos kWatchAfter = 200 * kMillisecond;
  /// The link to a rank; begins to connect when it is not connected. Throws LinkError.
  Link& to(int rank);
  /// Links are being made: look again soon.
  [[nodiscard]] bool busy() const { return !opening_.empty() || !awaited_.empty(); }
  [[nodiscard]] Link& known(int rank) { return links_[static_cast<std::size_t>(rank)]; }
  /// Accepts connections and follows those that are being made. True when anything changed. Throws LinkError.
  bool advance();
  /// Tells all ranks why this one is about to close.
  void tell(const std::string& why);
  /// Why another rank has closed, if one has said so. Drops announcements.
  std::optional<std::string> notice();
  /// Closes all connections and waits until the engine uses no memory of `requests`, and the peers know that everything
  /// has arrived. Peers that do not answer are given up (Device::close_and_wait).
  void close(const std::vector<std::shared_ptr<Request>>& requests);
  /// "rank 3 (10.0.0.4): " and the text.
  [[nodiscard]] std::string describe(int rank, const std::string& text) const;

 private:
  struct Incoming {
    std::shared_ptr<Connection> connection;
    std::shared_ptr<Request> hello;
    std::unique_ptr<std::array<std::byte, Hello::kBytes>> bytes;
  };
  void connect(int rank);
  std::shared_ptr<Connection> connect_to(int rank);
  [[nodiscard]] bool connected(const Connection& connection, int rank, Nanos since) const;
  bool follow(int rank);
  bool await(int rank);
  bool adopt(Incoming& incoming);
  void finish(int rank);
  void close_connection(const std::shared_ptr<Connection>& connection);

  std::shared_ptr<Device> device_;
  int rank_;
  int size_;
  std::shared_ptr<Listener> listener_;
  std::vector<std::array<std::byte, handshake::kHandleBytes>> handles_;
  std::vector<Link> links_;
  std::vector<int> opening_;  ///< ranks to which this one connects
  std::vector<int> awaited_;  ///< ranks that are to connect to this one
  std::vector<Incoming> incoming_;
};

}  // namespace paralet::collectives
