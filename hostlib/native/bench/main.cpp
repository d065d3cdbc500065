// SPDX-License-Identifier: Apache-2.0
// Measures back ends on loopback and prints one JSON object per figure and repetition. transport.hpp and
// scale.hpp describe the benchmarks.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

#include "flow.hpp"
#include "messages.hpp"
#include "scale.hpp"
#include "soft/requester.hpp"
#include "soft/responder.hpp"
#include "transport.hpp"

namespace {

using namespace paralet::bench;  // NOLINT(google-build-using-namespace): its own program

constexpr std::array<std::uint64_t, 7> kSizes = {64, 512, 4096, 65536, 262144, 1U << 20, 4U << 20};
constexpr std::size_t kReceivesAhead = 32;  // as is usual with RDMA; NCCL posts one
constexpr const char* kConnectionEachWay = "TCP, a connection each way";
constexpr std::array<unsigned, 4> kLanes = {1, 8, 32, 128};
constexpr unsigned kMostPeers = 512;  // which take long: only if a case asks for them

std::string size_name(std::uint64_t bytes) {
  if (bytes >= 1U << 20) return std::to_string(bytes >> 20) + " MiB";
  if (bytes >= 1024) return std::to_string(bytes >> 10) + " KiB";
  return std::to_string(bytes) + " B";
}

std::string count(unsigned n, const char* what) { return std::to_string(n) + " " + what + (n == 1 ? "" : "s"); }

/// A figure and that of a peer.
void print(const char* metric, const std::string& name, const char* unit, double ours, double peer,
           const char* peer_name = "TCP") {
  std::printf(R"({"metric": "%s", "case": "%s", "unit": "%s", "ours": %.6g, "peer": %.6g, "peer_name": "%s"})"
              "\n",
              metric, name.c_str(), unit, ours, peer, peer_name);
  std::fflush(stdout);
}

/// A figure without a comparison.
void print(const char* metric, const std::string& name, const char* unit, double ours) {
  std::printf(R"({"metric": "%s", "case": "%s", "unit": "%s", "ours": %.6g})"
              "\n",
              metric, name.c_str(), unit, ours);
  std::fflush(stdout);
}

struct Wanted {
  std::string_view only;                                   ///< the case, such as "1 MiB"; empty: all
  std::string back_end = "soft";                           ///< of `transport` and `memory`
  paralet::LanesPer lanes_per = paralet::LanesPer::kPeer;  ///< of `scale` and `memory`
};

void transport(const Wanted& asked) {
  const auto wanted = [&](std::uint64_t bytes) { return asked.only.empty() || asked.only == size_name(bytes); };
  for (const std::uint64_t bytes : kSizes) {
    if (!wanted(bytes)) continue;
    const std::string name = size_name(bytes);
    const Throughput ours = our_throughput(bytes, asked.back_end);
    const Throughput peer = tcp_throughput(bytes);
    print("throughput", name, "Gbit/s", ours.gbps, peer.gbps);
    print("processor, sender", name, "ns/B", ours.sender_ns_per_byte, peer.sender_ns_per_byte);
    print("processor, receiver", name, "ns/B", ours.receiver_ns_per_byte, peer.receiver_ns_per_byte);
  }
  for (const std::uint64_t bytes : {std::uint64_t{8}, std::uint64_t{4096}}) {
    if (!wanted(bytes)) continue;
    for (const std::size_t ahead : {kReceivesAhead, std::size_t{1}}) {
      const char* const metric = ahead == 1 ? "latency, one receive ahead" : "latency";
      const double ours = our_latency_us(bytes, ahead, asked.back_end);
      print(metric, size_name(bytes), "us", ours, tcp_latency_us(bytes, 1));
      if (ahead == 1) print(metric, size_name(bytes), "us", ours, tcp_latency_us(bytes, 2), kConnectionEachWay);
    }
  }
}

void scale(const Wanted& asked) {
  for (const unsigned peers : {1U, 8U, 64U, kMostPeers}) {
    for (const unsigned lanes : kLanes) {
      const std::string name = count(lanes, "lane") + ", " + count(peers, "peer");
      if (asked.only.empty() ? peers == kMostPeers : asked.only != name) continue;
      const ScaleFlow flow = scale_flow({.lanes = lanes, .peers = peers, .lanes_per = asked.lanes_per});
      print("throughput", name, "Gbit/s", flow.gbps);
      print("processor, hub", name, "ns/B", flow.hub_ns_per_byte);
      print("processor, peers", name, "ns/B", flow.peer_ns_per_byte);
    }
  }
}

/// A whole number, or throws std::invalid_argument.
std::uint64_t number(std::string_view option, std::string_view text) {
  std::uint64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size() || out == 0) {
    throw std::invalid_argument(std::string(option) + " must be a number of at least 1, not " + std::string(text));
  }
  return out;
}

paralet::IpAddress ip_address(std::string_view option, const std::string& text) {
  const auto out = paralet::parse_address(text);
  if (!out) throw std::invalid_argument(std::string(option) + " must be an IP address, not " + text);
  return *out;
}

/// One exchange. Prints one JSON object.
void one_flow(int argc, char** argv) {
  FlowCase c;
  c.transport = BackEnd{"soft"};
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string_view option(argv[i]);
    const std::string text(argv[i + 1]);
    if (option == "--transport") {
      c.transport = parse_transport(text);
    } else if (option == "--near") {
      c.near = ip_address(option, text);
    } else if (option == "--far") {
      c.far = ip_address(option, text);
    } else if (option == "--far-namespace") {
      c.far_namespace = text;
    } else if (option == "--bytes") {
      c.message_bytes = number(option, text);
    } else if (option == "--total") {
      c.total_bytes = number(option, text);
    } else if (option == "--ahead") {
      c.ahead = static_cast<unsigned>(number(option, text));
    } else if (option == "--shards") {
      c.shards = static_cast<unsigned>(number(option, text));
    } else if (option == "--cores") {
      c.cores = static_cast<unsigned>(number(option, text));
    } else if (option == "--pairs") {
      c.pairs = static_cast<unsigned>(number(option, text));
    } else if (option == "--ways") {
      c.both_ways = number(option, text) == 2;
    } else {
      throw std::invalid_argument("paralet-bench flow has no option " + std::string(option));
    }
  }
  const FlowFigures figures = flow(c);
  std::printf(R"({"gbps": %.6g, "near_ns_per_byte": %.6g, "far_ns_per_byte": %.6g})"
              "\n",
              figures.gbps, figures.near_ns_per_byte, figures.far_ns_per_byte);
}

void memory(const Wanted& asked) {
  constexpr unsigned kManyPeers = 64;
  for (const unsigned peers : {kManyPeers, kMostPeers}) {
    for (const unsigned lanes : kLanes) {
      const std::string name = count(lanes, "lane") + ", " + count(peers, "peer");
      if (asked.only.empty() ? peers == kMostPeers : asked.only != name) continue;
      const ScaleMemory use =
          scale_memory({.lanes = lanes, .peers = peers, .back_end = asked.back_end, .lanes_per = asked.lanes_per});
      print("memory, allocated", name, "B per idle lane and peer", use.allocated_bytes);
      print("memory, resident", name, "B per idle lane and peer", use.resident_bytes);
      if (asked.back_end != "soft") continue;
      print("memory, sending half of a QP", name, "B per lane and peer", sizeof(paralet::Requester));
      print("memory, receiving half of a QP", name, "B per lane and peer", sizeof(paralet::Responder));
    }
  }
}

struct Bench {
  std::string_view name;
  void (*run)(const Wanted& asked);
};
constexpr std::array<Bench, 3> kBenches = {{{"transport", transport}, {"scale", scale}, {"memory", memory}}};

struct Arguments {
  const Bench* bench = nullptr;
  unsigned repetitions = 5;
  Wanted asked;
};

Arguments parse(int argc, char** argv) {
  Arguments out;
  const std::string_view name(argc > 1 ? argv[1] : "");
  out.bench = std::ranges::find(kBenches, name, &Bench::name);
  bool ok = argc % 2 == 0 && out.bench != kBenches.end();
  for (int i = 2; ok && i + 1 < argc; i += 2) {
    const std::string_view option(argv[i]);
    const std::string_view text(argv[i + 1]);
    if (option == "--repetitions") {
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out.repetitions);
      ok = error == std::errc() && end == text.data() + text.size() && out.repetitions > 0;
    } else if (option == "--case") {
      out.asked.only = text;
    } else if (option == "--back-end") {
      out.asked.back_end = text;
    } else if (option == "--lanes-per" && (text == "peer" || text == "host")) {
      out.asked.lanes_per = text == "host" ? paralet::LanesPer::kHost : paralet::LanesPer::kPeer;
    } else {
      ok = false;
    }
  }
  if (!ok) {
    std::fprintf(
        stderr,
        "usage: paralet-bench transport|scale|memory [--repetitions N] [--case CASE] [--back-end NAME]\n"
        "           [--lanes-per peer|host] (N > 0; default 5)\n"
        "       such as: paralet-bench transport --case \"1 MiB\"\n"
        "                paralet-bench scale --case \"128 lanes, 64 peers\"\n"
        "       paralet-bench flow [--transport BACK_END|stream|sockets:TxS] [--bytes N] [--total N] [--ahead N]\n"
        "           [--shards N] [--cores N] [--pairs N] [--ways 1|2] [--near IP] [--far IP] [--far-namespace FILE]\n");
    std::exit(2);
  }
  return out;
}

int flow_main(int argc, char** argv) {
  try {
    one_flow(argc, argv);
    return 0;
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "paralet-bench: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "paralet-bench: %s\n", error.what());
    return 1;
  }
}

/// glibc counts freed memory in its per-thread cache as allocated, which has nothing to do with the number of lanes.
/// The cache can only be turned off when a program starts.
void keep_no_freed_memory(char** argv) {
  constexpr const char* kName = "GLIBC_TUNABLES";
  if (std::getenv(kName) != nullptr) return;
  ::setenv(kName, "glibc.malloc.tcache_count=0", 1);
  ::execv("/proc/self/exe", argv);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "flow") return flow_main(argc, argv);
  const Arguments arguments = parse(argc, argv);
  if (arguments.bench->run == memory) keep_no_freed_memory(argv);
  try {
    paralet::DeviceOptions unused;
    set_back_end(unused, arguments.asked.back_end);
    for (unsigned i = 0; i < arguments.repetitions; ++i) arguments.bench->run(arguments.asked);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "paralet-bench: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "paralet-bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
