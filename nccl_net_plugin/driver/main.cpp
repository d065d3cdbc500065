// SPDX-License-Identifier: Apache-2.0
// paralet-nccl-driver: collectives over NCCL's network plugin interface without NCCL.
#include <sys/prctl.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>

#include "net.hpp"
#include "options.hpp"
#include "plan.hpp"
#include "rank.hpp"
#include "spawn.hpp"

int main(int argc, char** argv) {
  using namespace paralet::driver;  // NOLINT(google-build-using-namespace): the program's own
  int status = 0;
  const auto options = parse(argc, argv, status);
  if (!options) return status;
  try {
    if (options->plan) {
      print_plan(*options, std::cout);
    } else if (options->spawn > 0) {
      return spawn_ranks(*options, argc, argv, std::cout) ? 0 : 1;
    } else {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a rank does not read its input during a run
      run_rank(*options, std::cin, std::cout);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "paralet-nccl-driver: %s\n", error.what());
    const bool alone = options->plan || options->spawn > 0;
    const bool peer_lost = dynamic_cast<const PeerLost*>(&error) != nullptr;
    const nlohmann::json report = {{"event", "failed"}, {"error", error.what()}, {"peer_lost", peer_lost}};
    if (!alone) std::cout << report.dump() << '\n';
    return 1;
  }
  return 0;
}
