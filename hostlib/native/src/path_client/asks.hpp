// SPDX-License-Identifier: Apache-2.0
// The service's asks for probes: which port is probed when, and when an ask is answered. No system call is made here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/pacer.hpp"
#include "path_client/messages.hpp"

namespace paralet::path_client {

class Asks {
 public:
  static constexpr std::size_t kMostOpen = 64;
  static constexpr Nanos kLongest = 5 * kSecond;  ///< after which an ask is answered, whatever has been found
  static constexpr unsigned kAttempts = 3;        ///< packets from a port that nobody answers
  static constexpr std::size_t kSought = 2;       ///< ports of an ask with `until` that are probed at a time

  /// An ask beyond kMostOpen is answered at once: all ports failed, or with `until` no port was probed. False for the
  /// number of an open ask.
  bool add(const ProbeAsk& ask, Nanos now);

  struct Due {
    std::uint64_t ask = 0;
    PeerName peer;
    std::uint8_t ttl = 1;
    std::uint16_t port = 0;
    bool once = false;  ///< see `ProbeAsk`
    Nanos since = 0;    ///< when the ask came: any answer to a probe that left since then will do
  };
  /// A probe that is to leave now. It belongs to the caller until `settled`.
  std::optional<Due> next(Nanos now);
  /// What became of it. When one of the routers in the `until` of an ask has answered, the ask is answered, though the
  /// caller may have a probe of another port still. A port that nobody answered is probed again, unless the ask is to
  /// be done once.
  void settled(std::uint64_t ask, const ProbedPort& answer);
  /// Ends asks that are too old. Returns the probes of theirs that the caller still has, which concern nobody now.
  std::vector<Due> expire(Nanos now);
  /// When `next` or `expire` has something to do; kNever when all is answered.
  [[nodiscard]] Nanos deadline() const;
  std::vector<Probed> take_answered() { return std::exchange(answered_, {}); }

 private:
  struct Port {
    ProbedPort answer{.port = 0, .answer = PortAnswer::kFailed};
    unsigned attempts = 0;
    bool out = false;   ///< the caller has a probe of it
    bool done = false;  ///< `answer` holds
  };
  struct Open {
    ProbeAsk ask;
    Nanos since = 0;
    Nanos until = 0;
    Pacer pace{0, 1};
    std::vector<Port> ports;
    std::deque<std::size_t> waiting;  ///< indices into `ports`
    std::size_t left = 0;             ///< ports that are not done
    std::size_t out = 0;              ///< ports of which the caller has a probe

    /// Whether a port may be probed now, but for the pace.
    [[nodiscard]] bool has_next() const { return !waiting.empty() && (ask.until.empty() || out < kSought); }
  };
  void answer(std::map<std::uint64_t, Open>::iterator open);

  std::map<std::uint64_t, Open> open_;
  std::vector<Probed> answered_;
};

}  // namespace paralet::path_client
