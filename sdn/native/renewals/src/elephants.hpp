// SPDX-License-Identifier: Apache-2.0
// The open elephants of one client, and the answer to a renewal: the release of an elephant together with the
// announcement of the next one to the same peer. It keeps its path, so no decision is due.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "host_line.hpp"

namespace paralet::renewals {

/// What announcements of a pair are answered by, as long as no decision changes it; in JSON.
struct Promise {
  std::string ports;
  std::string rate_bps;
};

/// A client and a peer that it sends to, as far as renewals change it.
struct Pair {
  std::string peer;
  std::uint16_t peer_port = 0;
  std::int64_t elephants = 0;             // open ones
  std::optional<std::int64_t> newest_id;  // of the one announced last, unless it was released
  std::string job;                        // of the one announced last
  double since_s = 0;                     // when the first of the open ones began
  std::optional<double> measured_bps;
  std::optional<Promise> promise;  // none where a renewal may need a decision
  void* owner = nullptr;           // what it is for callers

  /// Appends the line that answers an announcement. `promise` has a value.
  void write_answer(std::string& out, std::uint64_t generation, std::int64_t id) const;
  /// The same as `sdn.path_service.journal.Digest` counts it.
  void write_counted(std::string& out, std::uint64_t generation, std::int64_t id) const;
};

/// Appends a number in decimal digits.
void append(std::string& out, std::uint64_t number);

/// Not for several threads at once.
class Elephants {
 public:
  struct Open {
    Pair* pair = nullptr;
    std::int64_t bytes = 0;
    std::uint64_t order = 0;  // of opening
  };

  std::uint64_t generation = 0;  // of the last assignment

  [[nodiscard]] std::size_t size() const { return open_.size(); }
  [[nodiscard]] const Open* find(std::int64_t id) const;
  /// Opens an elephant, or changes the open one of this id, which keeps its order. Returns the pair that it was of.
  Pair* put(std::int64_t id, Pair& pair, std::int64_t bytes);
  std::optional<Open> take(std::int64_t id);
  /// The open elephants by id.
  [[nodiscard]] const std::unordered_map<std::int64_t, Open>& all() const { return open_; }
  /// The same, the oldest first.
  [[nodiscard]] std::vector<std::pair<std::int64_t, Open>> in_order() const;
  /// The id of the one that was opened last of this pair's.
  [[nodiscard]] std::optional<std::int64_t> newest(const Pair& pair) const;

  /// Ends one elephant and begins another one of the same pair, in the next generation. Returns the pair to answer for;
  /// null, with nothing done, where the messages are no renewal, or may need a decision.
  Pair* renew(const Release& released, const Announce& announced, double now_s);

 private:
  std::unordered_map<std::int64_t, Open> open_;
  std::uint64_t opened_ = 0;
};

}  // namespace paralet::renewals
