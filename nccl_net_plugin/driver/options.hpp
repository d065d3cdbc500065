// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "links.hpp"
#include "schedule.hpp"

namespace paralet::driver {

struct Options {
  Collective collective = Collective::kRing;
  unsigned ranks = 2;
  unsigned rank = 0;
  std::string transport = "tcp";  ///< or the path of a plugin
  int abi = 0;                    ///< a plugin's vtable; 0: the newest
  int device = 0;                 ///< a plugin's device
  std::string address;            ///< IPv4; empty: the plugin's own choice, or loopback
  std::uint64_t bytes = 64 << 20;
  std::uint64_t slice_bytes = 512 << 10;
  unsigned steps = kSteps;
  unsigned iterations = 1;
  std::uint64_t warm_up_bytes = 64 << 10;
  std::uint64_t seed = 0;
  Idle idle = Idle::kYield;  ///< ignored by pingpong, which always spins
  bool plan = false;         ///< print the schedule and exit
  unsigned spawn = 0;        ///< ranks to start on this machine; 0: run as one rank
  double timeout_s = 60;

  [[nodiscard]] Extent extent() const { return {ranks, bytes / sizeof(float), slice_bytes / sizeof(float), steps}; }
};

/// Parses the command line. No value when the program is to exit with `status`, after help or an error message.
std::optional<Options> parse(int argc, char** argv, int& status);

const char* name_of(Collective collective);

}  // namespace paralet::driver
