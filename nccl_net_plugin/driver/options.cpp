// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <arpa/inet.h>

#include <CLI/CLI.hpp>
#include <array>
#include <map>

#include "expected_data.hpp"

namespace paralet::driver {
namespace {

const std::map<std::string, Collective> kCollectives = {
    {"ring", Collective::kRing}, {"tree", Collective::kTree}, {"pingpong", Collective::kPingPong}};
const std::map<std::string, Idle> kIdles = {{"spin", Idle::kSpin}, {"yield", Idle::kYield}, {"nap", Idle::kNap}};

constexpr const char* kExample = R"(Examples:
  Four processes on this machine, messages of 1 MiB, 8 in flight, over plain TCP:
    paralet-nccl-driver --spawn 4 --collective ring --bytes 64MiB --slice-bytes 1MiB --iterations 8
  The latency of 8 bytes over a plugin:
    paralet-nccl-driver --spawn 2 --collective pingpong --bytes 8 --iterations 5000 --transport ./libnccl-net-paralet.so
A rank that is not started by --spawn reads commands from standard input and writes events to standard output, one JSON
object per line:
  -> {"event": "prepared", "handles": {PEER: TEXT}}         for each rank that will connect to this one
  <- {"op": "connect", "handles": {PEER: TEXT}, "timeout_s": S}   from each rank that this one connects to
  -> {"event": "connected", "messages_sent": N}
  <- {"op": "start", "at_s": T, "timeout_s": S}             T on the monotonic clock
  -> {"event": "finished", ...}
  <- {"op": "close"}
  -> {"event": "closed"}
or, at any time, {"event": "failed", "error": TEXT}.)";

/// What is wrong with an address, empty for an IP address.
std::string not_an_address(const std::string& text) {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  const bool valid =
      ::inet_pton(AF_INET, text.c_str(), bytes.data()) == 1 || ::inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1;
  return valid ? "" : text + " is not an IP address such as 10.0.0.1 or fd00::1";
}

/// Checks options against each other. One sentence, empty when there is no error.
std::string find_error(const Options& options) {
  const unsigned ranks = options.ranks;
  if (ranks < 2 || ranks > kMaxRanks) return "--ranks must be between 2 and " + std::to_string(kMaxRanks);
  if (options.rank >= ranks) return "--rank must be below --ranks, " + std::to_string(ranks);
  if (options.collective == Collective::kPingPong) {
    if (ranks != 2) return "--collective pingpong takes exactly two ranks";
  } else if (options.bytes % sizeof(float) != 0) {
    return "--bytes must be a multiple of 4, the size of a float";
  }
  if (options.slice_bytes % sizeof(float) != 0) return "--slice-bytes must be a multiple of 4";
  return "";
}

}  // namespace

std::optional<Options> parse(int argc, char** argv, int& status) {
  Options options;
  CLI::App app("Runs a collective over NCCL's network plugin interface, as NCCL's proxy does, and checks every byte.",
               "paralet-nccl-driver");
  app.footer(kExample);
  app.option_defaults()->take_last();  // --spawn appends each rank's options to the command line
  const auto size = CLI::AsSizeValue(true);
  std::string collective = "ring";
  std::string idle = "yield";
  app.add_option("--collective", collective, "ring or tree (all-reduce of floats), or pingpong")
      ->check(CLI::IsMember(kCollectives));
  app.add_option("--ranks", options.ranks, "Number of ranks");
  app.add_option("--rank", options.rank, "Rank of this process, from 0");
  app.add_option("--spawn", options.spawn,
                 "Start this number of ranks on 127.0.0.1, 127.0.0.2, .., and print a summary")
      ->check(CLI::Range(0U, 250U));
  app.add_option("--transport", options.transport, "Path of a plugin, or tcp: four plain TCP sockets per connection")
      ->capture_default_str();
  app.add_option("--abi", options.abi, "Version of the plugin's vtable, 8 to 12; 0: the newest it exports")
      ->capture_default_str()
      ->check(CLI::IsMember({0, 8, 9, 10, 11, 12}));
  app.add_option("--device", options.device, "Number of the plugin's device, from 0")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--address", options.address, "This rank's IP address (tcp: IPv4)")->check(not_an_address);
  app.add_option("--bytes", options.bytes, "Size of each rank's input (pingpong: of a message), as in 64MiB")
      ->capture_default_str()
      ->transform(size)
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 40));
  app.add_option("--slice-bytes", options.slice_bytes, "Largest size of a message, as in 512KiB")
      ->capture_default_str()
      ->transform(size)
      ->check(CLI::Range(std::uint64_t{4}, std::uint64_t{1} << 30));
  app.add_option("--steps", options.steps, "Most messages in flight on a connection")
      ->capture_default_str()
      ->check(CLI::Range(1U, 32U));
  app.add_option("--iterations", options.iterations, "Number of iterations, without a barrier between them")
      ->capture_default_str()
      ->check(CLI::Range(1U, 100'000'000U));
  app.add_option("--warm-up-bytes", options.warm_up_bytes,
                 "Size of the first message on each connection, which is not measured")
      ->capture_default_str()
      ->transform(size)
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 30));
  app.add_option("--seed", options.seed, "Seed of the data")->capture_default_str();
  app.add_option("--timeout-s", options.timeout_s, "With --spawn: time limit of each phase, in seconds")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--idle", idle, "Without progress: spin, yield, or nap for a millisecond; pingpong always spins")
      ->capture_default_str()
      ->check(CLI::IsMember(kIdles));
  app.add_flag("--plan", options.plan, "Print every message of the schedule, one JSON object per line, and exit");
  try {
    app.parse(argc, argv);
    options.collective = kCollectives.at(collective);
    options.idle = options.collective == Collective::kPingPong ? Idle::kSpin : kIdles.at(idle);
    if (options.spawn > 0) options.ranks = options.spawn;
    if (const std::string what = find_error(options); !what.empty()) throw CLI::ValidationError(what);
  } catch (const CLI::Success& success) {
    status = app.exit(success);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "paralet-nccl-driver: %s\n", error.what());
    status = 2;
    return std::nullopt;
  }
  return options;
}

const char* name_of(Collective collective) {
  for (const auto& [name, value] : kCollectives) {
    if (value == collective) return name.c_str();
  }
  return "";
}

}  // namespace paralet::driver
