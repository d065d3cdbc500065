// SPDX-License-Identifier: Apache-2.0
// A host's connection: answers what needs no decision, and leaves the rest to the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "elephants.hpp"

namespace paralet::renewals {

/// The lines of a host that were answered together, separated by commas.
struct Said {
  std::uint64_t number = 0;
  std::string lines;
};

/// So many renewals of a host were answered together, in this time from when they were read.
struct Renewals {
  double seconds = 0;
  std::uint64_t count = 0;
};

/// What was answered, for counts and for the log.
struct Done {
  std::uint64_t renewed = 0;  // elephants
  std::uint64_t answers = 0;
  std::vector<Renewals> renewals;
  bool is_logged = false;  // whether the two below are wanted
  std::vector<Said> said;
  std::string counted;  // the answers, as `sdn.path_service.journal.Digest` counts them
};

/// At most so many lines a second, and so many at once after silence; and the bytes of a line.
struct Limits {
  double lines_per_s = 0;
  double burst_lines = 0;
  std::size_t line_bytes = 0;
};

/// Not for several threads at once. Times are in seconds, and do not decrease.
class Host {
 public:
  explicit Host(const Limits& limits, double now_s) : heard_s(now_s), full_s(now_s), limits_(limits) {}

  double heard_s;                        // when something was heard last
  double full_s;                         // when the rate will allow `burst_lines` again
  bool is_clear = false;                 // whether the caller holds nothing that this host has said before
  std::shared_ptr<Elephants> elephants;  // of its client; null while nothing is answered here

  /// Whether the rate allows a few more lines now. Then they count.
  bool allow(std::size_t lines, double now_s);

  /// Answers the renewals and pings with which `data` begins, in `out`. Returns how many bytes these are. If bytes are
  /// left, the caller holds them from now on.
  std::size_t answer(std::uint64_t number, std::string_view data, double now_s, std::string& out, Done& done);

 private:
  [[nodiscard]] std::optional<HostLine> read(std::string_view line) const;
  /// The same for the first of them, of which `end` has the end of the first line. 0: it is none.
  std::size_t answer_first(std::uint64_t number, std::string_view data, std::size_t end, double now_s, std::string& out,
                           Done& done);

  Limits limits_;
};

}  // namespace paralet::renewals
