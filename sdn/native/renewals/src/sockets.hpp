// SPDX-License-Identifier: Apache-2.0
// The sockets of many hosts: what needs no decision is answered as it is read; the rest is for the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "host.hpp"

namespace paralet::renewals {

/// Something that the caller has to handle.
struct Event {
  enum class Kind {
    said,    // these bytes were received
    ended,   // the other side says no more
    failed,  // the connection is gone, for the reason of this `error`; 0: none
    waits,   // answers could not be sent at once; `unsent` says how many bytes wait
    sent,    // all that could not be sent at first has been sent
  };
  std::uint64_t number = 0;
  Kind kind = Kind::said;
  std::string data;
  int error = 0;
};

/// Its sockets are connected, do not block, and have numbers of the caller's. Not for several threads at once.
class Sockets {
 public:
  /// Throws std::system_error.
  Sockets();
  ~Sockets();
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;

  /// Readable when `round` has something to do.
  [[nodiscard]] int descriptor() const { return epoll_; }

  /// The descriptor is closed here, at the latest by `remove`. Throws std::system_error, and std::invalid_argument for
  /// a number that has a socket already.
  void add(std::uint64_t number, int descriptor, std::shared_ptr<Host> host);
  void remove(std::uint64_t number);
  /// Goes on or stops reading.
  void read(std::uint64_t number, bool on);
  /// Sends, now or as soon as the other side takes it. Returns the number of bytes that wait.
  std::size_t send(std::uint64_t number, std::string_view data);
  [[nodiscard]] std::size_t unsent(std::uint64_t number) const;
  /// Drops what has come. The kernel would reset a connection that is closed with bytes unread, and the other side
  /// would lose what was sent last.
  void drop(std::uint64_t number);

  /// Handles each of at most so many sockets once, until this time has passed. What is left comes first in the next
  /// round. Where `may_answer` is false, all is for the caller.
  std::vector<Event> round(double now_s, bool may_answer, int most, double most_s, Done& done);

 private:
  struct Socket {
    std::uint64_t number;
    int descriptor;
    std::shared_ptr<Host> host;
    std::string unsent;
    bool reads = true;
    bool has_failed = false;
  };
  /// A socket that has something to handle.
  struct Ready {
    std::uint64_t number;
    std::uint32_t events;
  };

  void handle(Socket& socket, std::uint32_t ready, double now_s, bool may_answer, std::vector<Event>& events,
              Done& done);
  void await(Socket& socket) const;
  void flush(Socket& socket) const;
  /// Returns the reason why the connection is gone; 0: it is not.
  int receive(Socket& socket, double now_s, bool may_answer, std::vector<Event>& events, Done& done);

  int epoll_;
  std::vector<Ready> rest_;  // what the last round has not handled
  std::unordered_map<std::uint64_t, std::unique_ptr<Socket>> sockets_;
  std::vector<char> received_;
  std::string answer_;
};

}  // namespace paralet::renewals
