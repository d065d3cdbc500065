// SPDX-License-Identifier: Apache-2.0
#include "path_client/messages.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/interfaces.hpp"
#include "base/printable.hpp"
#include "wire/wire.hpp"

namespace paralet::path_client {
namespace {

using nlohmann::json;

constexpr double kShortestPeriod = 0.1;  // seconds between two probes of a watched port
constexpr double kLongestPeriod = 3600;
constexpr double kLeastRate = 1e-3;  // packets per second
constexpr double kMostRate = 1e6;
constexpr std::size_t kMaxServiceName = 64;
constexpr std::size_t kMaxPath = 32;  // ports
constexpr std::size_t kMaxPortName = 256;

std::string line(const json& message) { return message.dump(-1, ' ', false, json::error_handler_t::replace) + '\n'; }

std::string hex(std::uint64_t value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out(16, '0');
  for (auto digit = out.rbegin(); digit != out.rend(); ++digit, value >>= 4) *digit = kDigits[value & 0xF];
  return out;
}

/// The member of that name, null when there is none.
const json& member(const json& object, const char* name) {
  static const json null;
  const auto found = object.find(name);
  return found == object.end() ? null : *found;
}

/// Up to `most` bytes of untrusted text, made safe for a log.
std::string quoted(const json& value, std::size_t most) {
  if (!value.is_string()) return {};
  return printable(std::string_view(value.get_ref<const std::string&>()).substr(0, most));
}

/// A non-negative integer of at most `most`.
std::optional<std::uint64_t> integer(const json& value, std::uint64_t most) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > most) return std::nullopt;
  return value.get<std::uint64_t>();
}

std::optional<double> number(const json& value, double least, double most) {
  if (!value.is_number()) return std::nullopt;
  const auto out = value.get<double>();
  return out >= least && out <= most ? std::optional(out) : std::nullopt;  // not of a NaN
}

std::optional<std::uint16_t> source_port(const json& value) {
  const auto out = integer(value, UINT16_MAX);
  if (!out || *out < wire::kFirstEntropyPort) return std::nullopt;
  return static_cast<std::uint16_t>(*out);
}

std::optional<IpAddress> address(const json& value) {
  return value.is_string() ? parse_address(value.get_ref<const std::string&>()) : std::nullopt;
}

std::string out_of_range(const char* message) { return std::string(message) + " with a port outside 49152..65535"; }

/// The peer of a message; otherwise what is wrong, where `message` names it.
std::variant<PeerName, InvalidMessage> peer_of(const json& object, const std::string& message) {
  const auto ip = address(member(object, "peer"));
  if (!ip) return InvalidMessage{.what = message + " whose peer is not an IP address", .peer = std::nullopt};
  const json& value = member(object, "peer_port");
  if (value.is_null()) return PeerName(*ip);
  const auto port = integer(value, UINT16_MAX);
  if (!port) return InvalidMessage{.what = message + " whose peer_port is no port", .peer = std::nullopt};
  return PeerName(*ip, static_cast<std::uint16_t>(*port));
}

/// The path of each of so many ports, or one for all, or none; nothing where the value is neither.
std::optional<std::vector<Path>> paths_of(const json& value, std::size_t ports) {
  std::vector<Path> out;
  if (value.is_null()) return out;
  if (!value.is_array() || (value.size() > 1 && value.size() != ports)) return std::nullopt;
  for (const json& names : value) {
    if (!names.is_array() || names.size() > kMaxPath) return std::nullopt;
    Path& path = out.emplace_back();
    for (const json& name : names) {
      path.push_back(quoted(name, kMaxPortName));
      if (path.back().empty()) return std::nullopt;
    }
  }
  return out;
}

Answer decode_assign(const json& message) {
  Assign out;
  const auto peer = peer_of(message, "an assignment");
  if (const auto* invalid = std::get_if<InvalidMessage>(&peer)) return *invalid;
  out.peer = std::get<PeerName>(peer);
  const auto wrong = [&out](const std::string& what) { return InvalidMessage{.what = what, .peer = out.peer}; };

  const json& ports = member(message, "ports");
  if (!ports.is_array() || ports.size() > kMaxPorts)
    return wrong("an assignment whose ports are not a list of at most 1024");
  for (const json& value : ports) {
    const auto port = source_port(value);
    if (!port) return wrong(out_of_range("an assignment"));
    out.ports.push_back(*port);
  }
  const json& generation = member(message, "generation");
  if (!generation.is_number_unsigned()) return wrong("an assignment whose generation is not a non-negative integer");
  out.generation = generation.get<std::uint64_t>();
  const json& id = member(message, "id");
  if (!id.is_null() && !id.is_number_unsigned()) return wrong("an assignment whose id is not a non-negative integer");
  if (!id.is_null()) out.id = id.get<std::uint64_t>();
  const json& rate = member(message, "rate_bps");
  if (!rate.is_null() && !rate.is_number()) return wrong("an assignment whose rate is not a number");
  if (!rate.is_null()) {
    out.rate_bps = rate.get<double>();
    if (!std::isfinite(out.rate_bps) || out.rate_bps <= 0) return wrong("an assignment whose rate is not above 0");
  }
  const json& cut = member(message, "cut");
  if (!cut.is_null() && !cut.is_boolean()) return wrong("an assignment whose cut is neither true nor false");
  out.cut = cut.is_boolean() && cut.get<bool>();
  auto paths = paths_of(member(message, "paths"), out.ports.size());
  if (!paths) return wrong("an assignment whose paths are not lists of names, one for each port or for all");
  out.paths = std::move(*paths);
  return out;
}

Answer decode_welcome(const json& message) {
  const auto wrong = [](const char* what) { return InvalidMessage{.what = what, .peer = {}, .fatal = true}; };
  const auto version = integer(member(message, "version"), kVersion);
  if (!version || *version < kOldestVersion) return wrong("a welcome of another version of the protocol");
  Welcome out{.version = static_cast<unsigned>(*version)};
  if (const json& generation = member(message, "generation"); !generation.is_null()) {
    const auto value = integer(generation, INT64_MAX);
    if (!value) return wrong("a welcome whose generation is not a non-negative integer");
    out.generation = *value;
  }
  if (out.version < 2) return out;
  const json& probe = member(message, "probe");
  if (!probe.is_null() && !probe.is_boolean()) return wrong("a welcome whose probe is neither true nor false");
  out.probe = probe.is_boolean() && probe.get<bool>();
  if (const json& rate = member(message, "router_rate"); !rate.is_null()) {
    const auto value = number(rate, 0, kMostRate);
    if (!value) return wrong("a welcome whose router_rate is not 0 to 1000000");
    out.router_rate = *value;
  }
  if (const json& burst = member(message, "router_burst"); !burst.is_null()) {
    const auto value = number(burst, 1, kMostRate);
    if (!value) return wrong("a welcome whose router_burst is not 1 to 1000000");
    out.router_burst = *value;
  }
  return out;
}

Answer decode_vote(const json& message) {
  const auto generation = integer(member(message, "generation"), INT64_MAX);
  const std::string service = quoted(member(message, "service"), kMaxServiceName);
  if (!generation || *generation == 0 || service.empty()) {
    return InvalidMessage{.what = "an ask for a vote without a generation and a service", .peer = {}};
  }
  const json& trial = member(message, "trial");
  return VoteAsk{{.generation = *generation, .service = service, .trial = trial.is_boolean() && trial.get<bool>()}};
}

/// Whether no two of the ports are the same.
bool distinct(std::vector<std::uint16_t> ports) {
  std::ranges::sort(ports);
  return std::ranges::adjacent_find(ports) == ports.end();
}

/// What asks for probes, and watches, have in common.
struct Probes {
  PeerName peer;
  std::uint8_t ttl = 1;
};

std::variant<Probes, InvalidMessage> probes_of(const json& message, const std::string& name) {
  const auto peer = peer_of(message, name);
  if (const auto* invalid = std::get_if<InvalidMessage>(&peer)) return *invalid;
  Probes out{.peer = std::get<PeerName>(peer)};
  if (out.peer.port == 0) return InvalidMessage{.what = name + " whose peer_port is no port", .peer = {}};
  const auto ttl = integer(member(message, "ttl"), UINT8_MAX);
  if (!ttl || *ttl == 0) return InvalidMessage{.what = name + " whose ttl is not 1 to 255", .peer = {}};
  out.ttl = static_cast<std::uint8_t>(*ttl);
  return out;
}

Answer decode_probe(const json& message) {
  const auto wrong = [](const std::string& what) { return InvalidMessage{.what = what, .peer = {}}; };
  const auto ask = integer(member(message, "ask"), INT64_MAX);
  if (!ask) return wrong("an ask for probes without a number");
  const auto probes = probes_of(message, "an ask for probes");
  if (const auto* invalid = std::get_if<InvalidMessage>(&probes)) return *invalid;
  const auto& [peer, ttl] = std::get<Probes>(probes);
  ProbeAsk out{.ask = *ask, .peer = peer, .ttl = ttl};
  const json& ports = member(message, "ports");
  if (!ports.is_array() || ports.empty() || ports.size() > kMaxProbedPorts) {
    return wrong("an ask for probes whose ports are not a list of 1 to 64");
  }
  for (const json& value : ports) {
    const auto port = source_port(value);
    if (!port) return wrong(out_of_range("an ask for probes"));
    out.ports.push_back(*port);
  }
  if (!distinct(out.ports)) return wrong("an ask for probes that names a port twice");
  if (const json& value = member(message, "rate"); !value.is_null()) {
    const auto rate = number(value, kLeastRate, kMostRate);
    if (!rate) return wrong("an ask for probes whose rate is not 0.001 to 1000000");
    out.rate = *rate;
  }
  const json& once = member(message, "once");
  if (!once.is_null() && !once.is_boolean()) return wrong("an ask for probes whose once is neither true nor false");
  out.once = once.is_boolean() && once.get<bool>();
  const json& until = member(message, "until");
  if (!until.is_null() && (!until.is_array() || until.size() > kMaxProbedPorts)) {
    return wrong("an ask for probes whose until is not a list of at most 64");
  }
  for (const json& value : until) {
    const auto router = address(value);
    if (!router) return wrong("an ask for probes whose until has what is not an IP address");
    out.until.push_back(*router);
  }
  return out;
}

Answer decode_watch(const json& message) {
  const auto wrong = [](const std::string& what) { return InvalidMessage{.what = what, .peer = {}}; };
  const auto probes = probes_of(message, "a watch");
  if (const auto* invalid = std::get_if<InvalidMessage>(&probes)) return *invalid;
  const auto& [peer, ttl] = std::get<Probes>(probes);
  Watch out{.peer = peer, .ttl = ttl};
  const json& rows = member(message, "ports");
  if (!rows.is_array() || rows.size() > kMaxProbedPorts)
    return wrong("a watch whose ports are not a list of at most 64");
  std::vector<std::uint16_t> ports;
  for (const json& row : rows) {
    if (!row.is_array() || row.size() != 2) return wrong("a watch whose ports are not pairs of a port and a router");
    const auto port = source_port(row[0]);
    if (!port) return wrong(out_of_range("a watch"));
    const auto router = address(row[1]);
    if (!router) return wrong("a watch with a router that is not an IP address");
    out.ports.push_back({.port = *port, .router = *router});
    ports.push_back(*port);
  }
  if (!distinct(std::move(ports))) return wrong("a watch that names a port twice");
  const auto period = number(member(message, "period_s"), kShortestPeriod, kLongestPeriod);
  if (!period) return wrong("a watch whose period_s is not 0.1 to 3600");
  out.period = from_seconds(*period);
  return out;
}

const char* name_of(PortAnswer answer) {
  switch (answer) {
    case PortAnswer::kHop:
      return "hop";
    case PortAnswer::kDestination:
      return "destination";
    case PortAnswer::kNone:
      return "none";
    case PortAnswer::kFailed:
      break;
  }
  return "failed";
}

json rows_of(const std::vector<ProbedPort>& answers) {
  json out = json::array();
  for (const ProbedPort& one : answers) {
    json row = json::array({one.port, name_of(one.answer), nullptr, nullptr});
    if (one.router) {
      row[2] = format_address(*one.router);
      row[3] = to_seconds(one.round_trip);
    }
    out.push_back(std::move(row));
  }
  return out;
}

}  // namespace

std::string encode(const Hello& hello) {
  json out{{"type", "hello"},
           {"version", hello.version},
           {"token", hello.token},
           {"device", format_address(hello.device.address)},
           {"instance", hex(hello.instance)},
           {"lanes", hello.lanes},
           {"generation", hello.generation}};
  if (hello.device.port != wire::kRocePort) out["udp_port"] = hello.device.port;
  if (hello.tcp) out["protocol"] = "tcp";
  if (hello.fixed) out["fixed"] = true;
  if (hello.paths) out["paths"] = true;
  if (hello.voted != 0) out["voted"] = hello.voted;
  if (hello.rank.ranks != 0) {
    out["job"] = hello.job;
    out["rank"] = hello.rank.rank;
    out["ranks"] = hello.rank.ranks;
  }
  return line(out);
}

std::string encode(const Announce& announce, const std::string& job, std::uint16_t port) {
  json out{{"type", "announce"},
           {"id", announce.id},
           {"peer", format_address(announce.peer.address)},
           {"bytes", announce.bytes}};
  if (announce.peer.port != wire::kRocePort) out["peer_port"] = announce.peer.port;
  if (!job.empty()) out["job"] = job;
  if (port != 0) out["port"] = port;
  if (announce.repeat > 0) out["repeat_s"] = to_seconds(announce.repeat);
  return line(out);
}

std::string encode(const Release& release) { return line({{"type", "release"}, {"id", release.id}}); }

std::string encode(std::span<const Measured> flows) {
  json rows = json::array();
  for (const Measured& flow : flows) {
    rows.push_back({{"id", flow.id},
                    {"bytes", flow.bytes},
                    {"seconds", to_seconds(flow.duration)},
                    {"rtt_s", to_seconds(flow.rtt)},
                    {"retransmits", flow.retransmits}});
  }
  return line({{"type", "measured"}, {"flows", std::move(rows)}});
}

std::string encode(const Report& report) {
  return line({{"type", "report"},
               {"id", report.id},
               {"lane", report.lane},
               {"port", report.port},
               {"reason", report.reason == Reason::kRtt ? "rtt" : "loss"},
               {"value", report.value}});
}

std::string encode_ping(std::uint64_t nonce) { return line({{"type", "ping"}, {"nonce", nonce}}); }

std::string encode_probe(double rate) {
  return line({{"type", "probe"}, {"rate", rate}, {"hops", true}, {"until", true}});
}

std::string encode(const Probed& probed) {
  return line({{"type", "probed"}, {"ask", probed.ask}, {"answers", rows_of(probed.answers)}});
}

std::string encode(const Vote& voted) {
  json out{{"type", "voted"}, {"generation", voted.generation}, {"service", voted.service}};
  if (voted.trial) out["trial"] = true;
  return line(out);
}

std::string encode(const Moved& moved) {
  json out{{"type", "moved"},
           {"peer", format_address(moved.peer.address)},
           {"ttl", moved.ttl},
           {"answers", rows_of(moved.answers)}};
  if (moved.peer.port != wire::kRocePort) out["peer_port"] = moved.peer.port;
  return line(out);
}

Answer decode(std::string_view text) {
  const json message = json::parse(text, nullptr, false);
  if (!message.is_object())
    return InvalidMessage{.what = "a line that is not a JSON object", .peer = {}, .fatal = true};
  const json& type = member(message, "type");
  if (type == "assign") return decode_assign(message);
  if (type == "probe") return decode_probe(message);
  if (type == "watch") return decode_watch(message);
  if (type == "vote") return decode_vote(message);
  if (type == "welcome") return decode_welcome(message);
  if (type == "error")
    return Refusal{.code = quoted(member(message, "code"), 32), .text = quoted(member(message, "text"), 200)};
  if (!type.is_string()) return InvalidMessage{.what = "a message without a type", .peer = {}};
  return Ignored{};
}

}  // namespace paralet::path_client
