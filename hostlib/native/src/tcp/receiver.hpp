// SPDX-License-Identifier: Apache-2.0
// The receiving half of a QP: the connection that its peer sends on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "backend/backend.hpp"
#include "tcp/frame_reader.hpp"
#include "tcp/greeter.hpp"
#include "tcp/watcher.hpp"

namespace paralet::tcp {

/// Memory that all connections of a device receive with.
struct Scratch {
  std::array<std::byte, 8192> staging;  ///< headers, and payloads that are short
  std::array<std::byte, 65536> sink;    ///< data for memory that has been given back
};

class Receiver {
 public:
  /// Short messages that are acknowledged together. The sender, which keeps copies of them, goes to another lane when
  /// twice as many are not acknowledged (LaneChoice::kStay).
  static constexpr std::uint64_t kOwedMost = 16;
  /// Short messages in a row after which a lane is taken to carry nothing else.
  static constexpr std::uint64_t kAlone = 16;

  Receiver(ReceiveContext& context, Watcher& watcher, std::uint32_t qpn)
      : completions_(context.completions), watcher_(watcher), reader_(context, qpn), qpn_(qpn) {}
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;
  ~Receiver();

  /// Whether a hello that fits the QP is newer than the last one, and the QP takes connections. One that has
  /// refused a frame takes them to say so.
  [[nodiscard]] bool takes(const Hello& hello) const { return !stopping_ && hello.attempt > attempt_; }
  /// The peer waits for answers to its pings.
  void answer_pings() { answers_ = true; }
  /// Takes the connection of such a hello: it follows the one before, once that is drained.
  void greet(Greeting&& greeting);
  /// Whether the number is of one of its connections.
  [[nodiscard]] bool owns(std::uint64_t watched) const;
  void on_event(std::uint64_t watched, std::uint32_t events);

  /// Receives, about `most` bytes. Returns whether it may have more to do without a further event or buffer.
  bool receive(Scratch& scratch, std::size_t most);
  [[nodiscard]] bool has_work() const { return ready_ || (next_ && !stalled()); }
  /// Messages wait for a receive buffer.
  [[nodiscard]] bool stalled() const { return reader_.stalled(); }
  /// Nothing has been received yet that a connection brought: the QP is not connected.
  [[nodiscard]] const Hello* early() const { return next_ ? &next_->hello : nullptr; }
  [[nodiscard]] const IpAddress* early_address() const { return next_ ? &next_->address : nullptr; }
  void drop_early() { drop(next_); }

  /// Backend::stop_qp: takes what has arrived and nothing more.
  void stop();

  [[nodiscard]] const FrameReader& reader() const { return reader_; }
  /// Frames that have arrived over the connection.
  [[nodiscard]] std::uint64_t frames_here() const { return reader_.frames() - welcomed_at_; }
  /// The kernel drops what arrives from now on.
  void deafen();
  /// The socket of the connection, -1: none.
  [[nodiscard]] int socket() const { return current_ ? current_->socket.get() : -1; }
  /// Short messages have been read that are not acknowledged yet, perhaps.
  [[nodiscard]] bool owes() const { return owed_ > 0; }
  /// Acknowledges them.
  void acknowledge();
  [[nodiscard]] std::uint16_t port() const { return current_ ? current_->port : 0; }

 private:
  void drop(std::optional<Greeting>& connection);
  void turn_over();
  bool read_some(Scratch& scratch, std::size_t& left);
  void refuse(Status status);
  void say(const Notice& notice);
  void acknowledge_read();

  std::vector<Completion>& completions_;
  Watcher& watcher_;
  FrameReader reader_;
  std::uint32_t qpn_;
  std::optional<Greeting> current_;
  std::optional<Greeting> next_;
  std::uint64_t welcomed_at_ = 0;  ///< frames of the QP when the connection became the current one
  std::uint32_t attempt_ = 0;      ///< of the newest hello
  std::vector<std::byte> carry_;   ///< received, and not taken for want of a receive buffer
  bool answers_ = false;           ///< to pings
  bool ready_ = false;             ///< the socket may have more
  bool awaited_ = false;           ///< the peer may wait for the acknowledgement of what was read
  bool later_ = false;             ///< the kernel leaves acknowledgements to `acknowledge`
  std::uint64_t owed_ = 0;         ///< short messages that are not acknowledged yet, perhaps
  std::uint64_t alone_ = 0;        ///< short messages since the last payload
  bool ended_ = false;             ///< its other end has ended the connection
  bool stopping_ = false;
  bool stopped_ = false;
};

}  // namespace paralet::tcp
