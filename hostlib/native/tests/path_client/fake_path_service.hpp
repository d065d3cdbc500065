// SPDX-License-Identifier: Apache-2.0
// A path service on a port of 127.0.0.1. The test calls it to accept, read and write.
#pragma once

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/interfaces.hpp"
#include "engine/channel.hpp"
#include "wire/peer_name.hpp"

namespace paralet::test {

class FakePathService {
 public:
  FakePathService() : listener_(listen_tcp(kLocalhost, port_)) {}

  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  /// Accepts the next connection and closes the one before.
  void accept() {
    REQUIRE(readable(listener_.get()));
    connection_ = FileDescriptor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    REQUIRE(connection_.valid());
    in_.clear();
  }
  void welcome() {
    accept();
    CHECK(receive()["type"] == "hello");
    send({{"type", "welcome"}, {"version", 1}, {"session", "1"}});
  }
  /// Welcomes the host and asks it to probe, as fast as it likes. Returns once the host has offered to.
  void welcome_probes() {
    accept();
    CHECK(receive()["version"] == 2);
    send({{"type", "welcome"}, {"version", 2}, {"session", "1"}, {"probe", true}, {"router_rate", 0}});
    CHECK(receive()["type"] == "probe");
  }
  /// Does not know the newest version, and welcomes the host by the older one.
  void welcome_older() {
    accept();
    CHECK(receive()["version"] == 2);
    send({{"type", "error"}, {"code", "version"}, {"text", "this service speaks version 1, not 2"}});
    accept();
    CHECK(receive()["version"] == 1);
    send({{"type", "welcome"}, {"version", 1}, {"session", "1"}});
  }
  void disconnect() { connection_.reset(); }
  /// The next message.
  nlohmann::json receive() {
    std::size_t end = 0;
    while ((end = in_.find('\n')) == std::string::npos) {
      REQUIRE(readable(connection_.get()));
      std::array<char, 4096> chunk;
      const ssize_t got = ::recv(connection_.get(), chunk.data(), chunk.size(), 0);
      REQUIRE(got > 0);
      in_.append(chunk.data(), static_cast<std::size_t>(got));
    }
    auto message = nlohmann::json::parse(in_.substr(0, end));
    in_.erase(0, end + 1);
    return message;
  }
  void send_raw(const std::string& bytes) const {
    REQUIRE(::send(connection_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
  }
  void send(const nlohmann::json& message) const { send_raw(message.dump() + '\n'); }
  void assign(PeerName peer, const std::vector<std::uint16_t>& ports, const nlohmann::json& more = {}) {
    nlohmann::json message{
        {"type", "assign"}, {"peer", format_address(peer.address)}, {"ports", ports}, {"generation", ++generation_}};
    if (!more.is_null()) message.update(more);
    send(message);
  }

 private:
  static constexpr std::uint32_t kLocalhost = 0x7F000001;
  static constexpr int kTimeoutMs = 20'000;
  static bool readable(int fd) {
    pollfd waited{.fd = fd, .events = POLLIN, .revents = 0};
    return ::poll(&waited, 1, kTimeoutMs) == 1;
  }

  std::uint16_t port_ = 0;
  FileDescriptor listener_;
  FileDescriptor connection_;
  std::string in_;
  std::uint64_t generation_ = 0;
};

}  // namespace paralet::test
