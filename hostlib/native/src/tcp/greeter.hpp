// SPDX-License-Identifier: Apache-2.0
// Accepts connections and reads their first bytes, which say for which QP they are.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "base/clock.hpp"
#include "base/file_descriptor.hpp"
#include "base/ip_address.hpp"
#include "tcp/frames.hpp"
#include "tcp/lane_socket.hpp"
#include "tcp/watcher.hpp"

namespace paralet::tcp {

/// A connection that has said hello.
struct Greeting {
  FileDescriptor socket;
  std::uint64_t watched = 0;
  IpAddress address;
  std::uint16_t port = 0;
  Hello hello;
};

class Greeter {
 public:
  /// Throws DeviceError.
  Greeter(const SocketSettings& settings, Watcher& watcher);

  [[nodiscard]] std::uint16_t port() const { return port_; }
  /// Whether the number is of the listening socket, or of a connection without a hello. Its event is taken care of. A
  /// complete hello goes to `greeted`.
  bool on_event(std::uint64_t watched, Nanos now, std::optional<Greeting>& greeted);
  /// Closes connections that have been silent for too long.
  void tick(Nanos now);
  /// When `tick` has work.
  [[nodiscard]] Nanos deadline() const;
  /// Connections closed because of what they said, or did not say.
  [[nodiscard]] std::uint64_t refused() const { return refused_; }

 private:
  struct Waiting {
    Accepted accepted;
    std::uint64_t watched = 0;
    Nanos until = 0;
    std::uint8_t received = 0;
    std::array<std::byte, kHelloBytes> bytes{};
  };
  void accept_all(Nanos now);
  void drop_oldest();
  std::optional<Greeting> read(std::size_t index);

  const SocketSettings& settings_;
  Watcher& watcher_;
  std::uint16_t port_ = 0;
  FileDescriptor listener_;
  std::uint64_t watched_ = 0;
  std::deque<Waiting> waiting_;  ///< oldest first
  Nanos accept_again_ = kNever;
  std::uint64_t refused_ = 0;
};

}  // namespace paralet::tcp
