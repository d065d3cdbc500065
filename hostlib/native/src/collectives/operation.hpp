// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "engine/request.hpp"

namespace paralet::collectives {

enum class Kind : std::uint8_t {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kBarrier,
  kSend,
  kReceive,
};

inline const char* to_string(Kind kind) {
  constexpr std::array<const char*, 11> kNames = {"all_reduce",     "reduce",     "broadcast", "all_gather",
                                                  "reduce_scatter", "all_to_all", "gather",    "scatter",
                                                  "barrier",        "send",       "recv"};
  const auto index = static_cast<std::size_t>(kind);
  return index < kNames.size() ? kNames[index] : "an unknown operation";
}
inline bool has_reduction(Kind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter;
}
inline bool has_root(Kind kind) {
  return kind == Kind::kReduce || kind == Kind::kBroadcast || kind == Kind::kGather || kind == Kind::kScatter;
}

/// An operation that a caller has issued. The group writes the second group of members before it sets `state`.
struct Operation {
  enum class State : std::uint8_t { kPending, kDone, kFailed };

  std::uint64_t id = 0;  ///< unique in the process
  Kind kind = Kind::kBarrier;

  Failure failure = Failure::kNone;
  std::string error;
  int source = -1;  ///< of a receive: the sender's rank

  std::atomic<State> state{State::kPending};
  [[nodiscard]] bool done() const { return state.load(std::memory_order_acquire) != State::kPending; }
};

}  // namespace paralet::collectives
