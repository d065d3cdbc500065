// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <functional>
#include <limits>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "expected_data.hpp"

namespace paralet::driver {
namespace {

template <typename Value>
using Word = std::pair<const char*, Value>;

constexpr std::array<Word<Collective>, 3> kCollectives = {
    {{"ring", Collective::kRing}, {"tree", Collective::kTree}, {"pingpong", Collective::kPingPong}}};
constexpr std::array<Word<Idle>, 3> kIdles = {{{"spin", Idle::kSpin}, {"yield", Idle::kYield}, {"nap", Idle::kNap}}};
constexpr std::array<Word<int>, 6> kAbis = {{{"0", 0}, {"8", 8}, {"9", 9}, {"10", 10}, {"11", 11}, {"12", 12}}};

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

/// What an option takes.
struct Value {
  std::string what;                            ///< as in "must be ..."; empty for an option without a value
  std::string standard;                        ///< the value without the option; empty: none
  std::function<bool(std::string_view)> read;  ///< false: the text is no such value
};

template <typename Number>
std::string text_of(Number number) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

template <typename Number>
Value number(Number& out, Number least, Number most = std::numeric_limits<Number>::max()) {
  std::string what = std::is_integral_v<Number> ? "a whole number" : "a number";
  what += " from " + text_of(least) + " to " + text_of(most);
  return {std::move(what), text_of(out), [&out, least, most](std::string_view text) {
            const auto [end, error] = std::from_chars(text.begin(), text.end(), out);
            return error == std::errc() && end == text.end() && out >= least && out <= most;
          }};
}

/// What a unit of bytes stands for: "kB" for 1,000, "KiB" for 1,024, "" for 1. 0 if it is no unit.
std::uint64_t unit(std::string name) {
  std::ranges::transform(name, name.begin(), [](unsigned char letter) { return std::tolower(letter); });
  if (name.ends_with('b')) name.pop_back();
  const std::uint64_t base = name.ends_with('i') ? 1024 : 1000;
  if (base == 1024) name.pop_back();
  if (name.empty()) return base == 1000 ? 1 : 0;
  std::uint64_t factor = 1;
  for (const char prefix : std::string_view("kmgt")) {
    factor *= base;
    if (name.front() == prefix && name.size() == 1) return factor;
  }
  return 0;
}

Value size(std::uint64_t& out, std::uint64_t least, std::uint64_t most) {
  std::string what = "a size such as 64MiB, from " + text_of(least) + " to " + text_of(most) + " bytes";
  return {std::move(what), text_of(out), [&out, least, most](std::string_view text) {
            std::uint64_t value = 0;
            const auto [end, error] = std::from_chars(text.begin(), text.end(), value);
            const std::uint64_t factor =
                unit(std::string(std::find_if(end, text.end(), [](char letter) { return letter != ' '; }), text.end()));
            if (error != std::errc() || factor == 0 || value > most / factor) return false;
            out = value * factor;
            return out >= least;
          }};
}

template <typename Kind>
Value word(Kind& out, std::span<const Word<Kind>> words) {
  Value value;
  for (const auto& [name, kind] : words) {
    if (!value.what.empty()) value.what += name == words.back().first ? " or " : ", ";
    value.what += name;
    if (kind == out) value.standard = name;
  }
  value.read = [&out, words](std::string_view text) {
    const auto found = std::ranges::find(words, text, &Word<Kind>::first);
    if (found != words.end()) out = found->second;
    return found != words.end();
  };
  return value;
}

Value path_or_tcp(std::string& out) {
  return {"a path or tcp", out, [&out](std::string_view text) {
            out = text;
            return !text.empty();
          }};
}

Value ip_address(std::string& out) {
  return {"an IP address such as 10.0.0.1 or fd00::1", out, [&out](std::string_view text) {
            out = text;
            std::array<unsigned char, sizeof(in6_addr)> bytes{};
            return ::inet_pton(AF_INET, out.c_str(), bytes.data()) == 1 ||
                   ::inet_pton(AF_INET6, out.c_str(), bytes.data()) == 1;
          }};
}

Value flag(bool& out) {
  return {"", "", [&out](std::string_view) { return out = true; }};
}

struct Option {
  const char* name;
  const char* help;
  Value value;
};

std::vector<Option> options_of(Options& out) {
  return {
      {"--collective", "ring or tree (all-reduce of floats), or pingpong",
       word<Collective>(out.collective, kCollectives)},
      {"--ranks", "Number of ranks", number(out.ranks, 2U, kMaxRanks)},
      {"--rank", "Rank of this process, from 0", number(out.rank, 0U, kMaxRanks - 1)},
      {"--spawn", "Start this number of ranks on 127.0.0.1, 127.0.0.2, .., and print a summary",
       number(out.spawn, 0U, 250U)},
      {"--transport", "Path of a plugin, or tcp: four plain TCP sockets per connection", path_or_tcp(out.transport)},
      {"--abi", "Version of the plugin's vtable; 0: the newest it exports", word<int>(out.abi, kAbis)},
      {"--device", "Number of the plugin's device, from 0", number(out.device, 0)},
      {"--address", "This rank's IP address (tcp: IPv4)", ip_address(out.address)},
      {"--bytes", "Size of each rank's input (pingpong: of a message)", size(out.bytes, 1, std::uint64_t{1} << 40)},
      {"--slice-bytes", "Largest size of a message", size(out.slice_bytes, 4, 1 << 30)},
      {"--steps", "Most messages in flight on a connection", number(out.steps, 1U, 32U)},
      {"--iterations", "Number of iterations, without a barrier between them",
       number(out.iterations, 1U, 100'000'000U)},
      {"--warm-up-bytes", "Size of the first message on each connection, which is not measured",
       size(out.warm_up_bytes, 1, 1 << 30)},
      {"--seed", "Seed of the data", number(out.seed, std::uint64_t{0})},
      {"--timeout-s", "With --spawn: time limit of each phase, in seconds", number(out.timeout_s, 1e-3, 86'400.0)},
      {"--idle", "Without progress: spin, yield, or nap for a millisecond; pingpong always spins",
       word<Idle>(out.idle, kIdles)},
      {"--plan", "Print every message of the schedule, one JSON object per line, and exit", flag(out.plan)},
  };
}

void print_help(const std::vector<Option>& options) {
  std::puts(
      "Runs a collective over NCCL's network plugin interface, as NCCL's proxy does, and checks every byte.\n"
      "Usage: paralet-nccl-driver [OPTIONS]\n\nOptions, of which the last counts where one is repeated:");
  for (const auto& [name, help, value] : options) {
    const std::string standard = value.standard.empty() ? "" : "; default " + value.standard;
    const std::string takes = value.what.empty() ? "" : "\n      " + value.what + standard;
    std::printf("  %s\n      %s%s\n", name, help, takes.c_str());
  }
  std::printf("\n%s\n", kExample);
}

/// Reads the command line. One sentence, empty when there is no error.
std::string read(const std::vector<Option>& options, std::span<char* const> arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument(arguments[i]);
    const std::size_t equals = argument.find('=');
    const auto option = std::ranges::find(options, argument.substr(0, equals), &Option::name);
    if (option == options.end()) return "there is no option " + std::string(argument);
    const auto& [name, help, value] = *option;
    std::string_view text;
    if (equals != std::string_view::npos) {
      text = argument.substr(equals + 1);
    } else if (!value.what.empty()) {
      const bool missing = ++i == arguments.size() || std::string_view(arguments[i]).starts_with("--");
      if (missing) return std::string(name) + " takes " + value.what;
      text = arguments[i];
    }
    if (value.what.empty() && equals != std::string_view::npos) return std::string(name) + " takes no value";
    if (!value.read(text)) return std::string(name) + " must be " + value.what + ", not " + std::string(text);
  }
  return "";
}

/// Checks options against each other. One sentence, empty when there is no error.
std::string find_error(const Options& options) {
  const unsigned ranks = options.ranks;
  if (ranks < 2) return "--spawn must be 0, or at least 2";
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
  Options parsed;
  const std::vector<Option> options = options_of(parsed);
  const std::span<char* const> arguments(argv + 1, argv + argc);
  const auto asks_for_help = [](std::string_view argument) { return argument == "-h" || argument == "--help"; };
  if (std::ranges::any_of(arguments, asks_for_help)) {
    print_help(options);
    status = 0;
    return std::nullopt;
  }
  std::string error = read(options, arguments);
  if (parsed.collective == Collective::kPingPong) parsed.idle = Idle::kSpin;
  if (parsed.spawn > 0) parsed.ranks = parsed.spawn;
  if (error.empty()) error = find_error(parsed);
  if (error.empty()) return parsed;
  std::fprintf(stderr, "paralet-nccl-driver: %s\n", error.c_str());
  status = 2;
  return std::nullopt;
}

const char* name_of(Collective collective) {
  return std::ranges::find(kCollectives, collective, &Word<Collective>::second)->first;
}

}  // namespace paralet::driver
