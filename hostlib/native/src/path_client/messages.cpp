// SPDX-License-Identifier: Apache-2.0
#include "path_client/messages.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/interfaces.hpp"
#include "base/printable.hpp"
#include "wire/wire.hpp"

namespace paralet::path_client {
namespace {

using nlohmann::json;

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

Answer decode_assign(const json& message) {
  Assign out;
  const json& peer = member(message, "peer");
  const auto address = peer.is_string() ? parse_address(peer.get_ref<const std::string&>()) : std::nullopt;
  if (!address) return InvalidMessage{.what = "an assignment whose peer is not an IP address", .peer = std::nullopt};
  const json& peer_port = member(message, "peer_port");
  const bool has_port = peer_port.is_number_unsigned() && peer_port.get<std::uint64_t>() <= UINT16_MAX;
  if (!peer_port.is_null() && !has_port) {
    return InvalidMessage{.what = "an assignment whose peer_port is no port", .peer = std::nullopt};
  }
  out.peer = has_port ? PeerName(*address, peer_port.get<std::uint16_t>()) : PeerName(*address);
  const auto wrong = [&out](const char* what) { return InvalidMessage{.what = what, .peer = out.peer}; };

  const json& ports = member(message, "ports");
  if (!ports.is_array() || ports.size() > kMaxPorts)
    return wrong("an assignment whose ports are not a list of at most 1024");
  for (const json& port : ports) {
    const auto number = port.is_number_unsigned() ? port.get<std::uint64_t>() : 0;
    if (number < wire::kFirstEntropyPort || number > UINT16_MAX) {
      return wrong("an assignment with a port outside 49152..65535");
    }
    out.ports.push_back(static_cast<std::uint16_t>(number));
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
  return out;
}

}  // namespace

std::string encode(const Hello& hello) {
  json out{{"type", "hello"},
           {"version", kVersion},
           {"token", hello.token},
           {"device", format_address(hello.device.address)},
           {"instance", hex(hello.instance)},
           {"lanes", hello.lanes}};
  if (hello.device.port != wire::kRocePort) out["udp_port"] = hello.device.port;
  if (hello.tcp) out["protocol"] = "tcp";
  return line(out);
}

std::string encode(const Announce& announce, const std::string& job) {
  json out{{"type", "announce"},
           {"id", announce.id},
           {"peer", format_address(announce.peer.address)},
           {"bytes", announce.bytes}};
  if (announce.peer.port != wire::kRocePort) out["peer_port"] = announce.peer.port;
  if (!job.empty()) out["job"] = job;
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

Answer decode(std::string_view text) {
  const json message = json::parse(text, nullptr, false);
  if (!message.is_object())
    return InvalidMessage{.what = "a line that is not a JSON object", .peer = {}, .fatal = true};
  const json& type = member(message, "type");
  if (type == "assign") return decode_assign(message);
  if (type == "welcome") {
    if (member(message, "version") == kVersion) return Welcome{};
    return InvalidMessage{.what = "a welcome of another version of the protocol", .peer = {}, .fatal = true};
  }
  if (type == "error")
    return Refusal{.code = quoted(member(message, "code"), 32), .text = quoted(member(message, "text"), 200)};
  if (!type.is_string()) return InvalidMessage{.what = "a message without a type", .peer = {}};
  return Ignored{};
}

}  // namespace paralet::path_client
