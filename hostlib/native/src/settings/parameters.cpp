// SPDX-License-Identifier: Apache-2.0
#include "settings/parameters.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <utility>

#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "engine/lane_segments.hpp"
#include "engine/options.hpp"
#include "settings/error.hpp"
#include "settings/values.hpp"

namespace paralet::settings {
namespace {

// -- parameters that are no options of a device
// ----------------------------------------------------------------------------

void set_config(Settings& settings, const std::string& value) { settings.config_file = value; }

void set_ifname(Settings& settings, const std::string& value) {
  settings.selection.names = NameFilter::parse(value);
  if (!settings.selection.names) not_allowed();
  settings.selected_by = "PARALET_IFNAME=" + value;
}

void set_addresses(Settings& settings, const std::string& value) {
  std::vector<IpAddress>& addresses = settings.selection.addresses;
  for (const std::string& text : split(value, ",")) {
    const auto address = parse_address(text);
    if (!address) refuse("'" + text + "' is not an IP address such as 10.0.0.1 or fd00::1");
    addresses.push_back(*address);
  }
  if (addresses.empty()) not_allowed();
  if (std::set(addresses.begin(), addresses.end()).size() != addresses.size()) refuse("an address is named twice");
  settings.selected_by = "PARALET_ADDRESSES=" + value;
}

std::int16_t parse_id(std::string_view text) { return static_cast<std::int16_t>(parse_integer(text, 0, INT16_MAX)); }

/// "order", "none", or "eth0=0,eth1=1:0": NAME=RAIL or NAME=RAIL:PLANE.
void set_rails(Settings& settings, const std::string& value) {
  settings.rails.by_position = value == "order";
  if (value == "order" || value == "none") return;
  for (const std::string& entry : split(value, ",")) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0) not_allowed();
    const std::string_view ids = std::string_view(entry).substr(equals + 1);
    const std::size_t colon = ids.find(':');
    RailPlane ids_of{.rail = parse_id(ids.substr(0, colon))};
    if (colon != std::string_view::npos) ids_of.plane = parse_id(ids.substr(colon + 1));
    const std::string name(trim(std::string_view(entry).substr(0, equals)));
    if (!settings.rails.named.emplace(name, ids_of).second) refuse("the interface " + name + " is named twice");
  }
  if (settings.rails.named.empty()) not_allowed();
}

// -- options of the engine as text --------------------------------------------------------------------------

constexpr const char* kByteUnits = ", or with KiB, MiB, GiB";
constexpr const char* kPortsSyntax =
    "ADDRESS=PORT,PORT,..;ADDRESS=.. with ports 49152 to 65535, or a file (/PATH or ./PATH) with one entry per line";

/// "10.0.0.2=50000,50001; 10.0.0.3=50010", or a file with one such entry per line.
SourcePorts parse_ports(const std::string& value) {
  std::vector<Line> entries;
  if (value.starts_with('/') || value.starts_with('.')) {
    entries = read_lines(value);
  } else {
    for (std::string& entry : split(value, ";")) entries.push_back({"", std::move(entry)});
  }
  SourcePorts table;
  for (const Line& entry : entries) {
    const std::size_t equals = entry.text.find('=');
    if (equals == std::string::npos) refuse(entry.where + "'" + entry.text + "' is not ADDRESS=PORT,PORT,..");
    const std::string peer(trim(std::string_view(entry.text).substr(0, equals)));
    if (const auto address = parse_address(peer); address && table.contains(*address)) {
      refuse(entry.where + peer + " has two lists of ports");
    }
    try {
      add_source_ports(table, peer, split(std::string_view(entry.text).substr(equals + 1), ", "));
    } catch (const std::invalid_argument& error) {
      refuse(entry.where + error.what());
    }
  }
  if (table.empty()) not_allowed();
  return table;
}

/// "fd00::2=fd03::1,fd03::2|fd03::3,fd03::4": the segments of lanes, apart by |, in the order of their ports.
LaneSegments parse_segments(const std::string& value) {
  LaneSegments table;
  for (const std::string& entry : split(value, ";")) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos) refuse("'" + entry + "' is not ADDRESS=SEGMENT,SEGMENT|..");
    const std::string peer(trim(std::string_view(entry).substr(0, equals)));
    if (const auto address = parse_address(peer); address && table.contains(*address)) {
      refuse(peer + " has two lists of segments");
    }
    std::vector<std::vector<std::string>> lanes;
    for (const std::string& lane : split(std::string_view(entry).substr(equals + 1), "|")) {
      lanes.push_back(split(lane, ", "));
    }
    try {
      add_segments(table, peer, lanes);
    } catch (const std::invalid_argument& error) {
      refuse(error.what());
    }
  }
  if (table.empty()) not_allowed();
  return table;
}

/// The option's value as people write it. Throws OptionNotAllowed when the text is no such value, SettingsError with a
/// sentence where there is more to say.
OptionValue parse(const Option& option, const std::string& text) {
  const auto real = [&](auto parser) {
    const auto& bounds = std::get<RealBounds>(option.domain);
    return parser(text, bounds.least, bounds.most);
  };
  switch (option.type) {
    case OptionType::kInteger:
      return parse_integer(text, 0, UINT64_MAX);
    case OptionType::kBytes: {
      const auto& bounds = std::get<IntegerBounds>(option.domain);
      return parse_bytes(text, bounds.least, bounds.most);
    }
    case OptionType::kNumber:
      return real(parse_number);
    case OptionType::kBitsPerSecond:
      return real(parse_rate);
    case OptionType::kSeconds:
      return real(parse_seconds);
    case OptionType::kChoice:
    case OptionType::kText:
      return text;
    case OptionType::kPorts:
      return parse_ports(text);
    case OptionType::kSegments:
      return parse_segments(text);
    case OptionType::kSecondsRange:
      break;
  }
  throw std::logic_error(std::string("the option ") + option.name + " has a type that has no text");
}

/// What is allowed, with the units that the parser takes.
std::string allowed_text(const Option& option) {
  switch (option.type) {
    case OptionType::kBytes:
      return allowed_values(option) + kByteUnits;
    case OptionType::kBitsPerSecond:
      return "a rate such as 100Gbit/s or 25000Mbit/s, " + allowed_values(option) + " bit/s";
    case OptionType::kSeconds:
      return "a duration such as 10s, 67ms or 50us, up to " + format_number(std::get<RealBounds>(option.domain).most) +
             "s";
    case OptionType::kPorts:
      return kPortsSyntax;
    case OptionType::kSegments:
      return "ADDRESS=SEGMENT,SEGMENT,..|SEGMENT,..;ADDRESS=.. with IPv6 addresses, and a list for each of "
             "PARALET_PORTS";
    default:
      return allowed_values(option);
  }
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;
  return bytes % kMebibyte == 0 ? std::to_string(bytes / kMebibyte) + " MiB" : std::to_string(bytes);
}

std::string seconds_text(double seconds) {
  if (seconds == 0) return "0";
  return seconds < 1 ? format_number(seconds * 1e3) + "ms" : format_number(seconds) + "s";
}

std::string default_text(const Option& option) {
  if (option.automatic != nullptr) return option.automatic;
  const OptionValue value = option.get(DeviceOptions{});
  if (const auto* name = std::get_if<std::string>(&value)) return *name;
  if (const auto* integer = std::get_if<std::uint64_t>(&value)) {
    return option.type == OptionType::kBytes ? bytes_text(*integer) : std::to_string(*integer);
  }
  const double number = std::get<double>(value);
  return option.type == OptionType::kSeconds ? seconds_text(number) : format_number(number);
}

void apply(Settings& settings, const Option& option, const std::string& text) {
  OptionValue value = parse(option, text);
  try {
    set_option(settings.device, option, value);
  } catch (const DeviceError& error) {
    refuse(error.what());
  }
  settings.options.insert_or_assign(option.name, std::move(value));
}

// -- the back end: the variable takes one value more than the option ------------------------------------------

constexpr std::string_view kBackendVariable = "PARALET_BACKEND";
constexpr std::string_view kAutomatic = "auto";

void set_backend(Settings& settings, const Option& option, const std::string& text) {
  settings.automatic_backend = text == kAutomatic;
  if (!settings.automatic_backend) apply(settings, option, text);
}

Parameter backend_parameter(const Option& option) {
  return {option.variable, std::string(kAutomatic) + ", " + allowed_text(option), std::string(kAutomatic),
          std::string(option.meaning) +
              " auto: verbs where an interface has an active RoCE port, else tcp; parameters of soft need its name.",
          [&option](Settings& settings, const std::string& text) { set_backend(settings, option, text); }};
}

// -- faults: several options in one variable ----------------------------------------------------------------

constexpr std::string_view kFaultPrefix = "faults.";

const Option* find_fault(std::string_view name) {
  const auto found = std::ranges::find_if(options(), [name](const Option& option) {
    const std::string_view full = option.name;
    return full.starts_with(kFaultPrefix) && full.substr(kFaultPrefix.size()) == name;
  });
  return found != options().end() ? &*found : nullptr;
}

void set_faults(Settings& settings, const std::string& value) {
  const std::vector<std::string> entries = split(value, ",");
  if (entries.empty()) not_allowed();
  for (const std::string& entry : entries) {
    const std::size_t equals = entry.find('=');
    const Option* fault = find_fault(std::string_view(entry).substr(0, equals));
    if (equals == std::string::npos || fault == nullptr) not_allowed();
    apply(settings, *fault, entry.substr(equals + 1));
  }
}

/// "drop=0 to 1, .., seed=0 to 18446744073709551615"
std::string fault_values() {
  std::string out;
  for (const Option& option : options()) {
    const std::string_view name = option.name;
    if (!name.starts_with(kFaultPrefix)) continue;
    out += (out.empty() ? "" : ", ") + std::string(name.substr(kFaultPrefix.size())) + "=" + allowed_values(option);
  }
  return out + ", separated by commas";
}

std::vector<Parameter> make_parameters() {
  std::vector<Parameter> out = {
      {"PARALET_CONFIG", "a readable file", "none",
       "File with lines NAME=value for the parameters below; # starts a comment. The environment overrides the file.",
       set_config},
      {"PARALET_IFNAME", "names separated by commas, after = exact names, after ^ names to leave out",
       "NCCL_SOCKET_IFNAME, else all but docker, lo, virbr, else these",
       "Interfaces to use, by prefix. Each that is up is a device, with the one of its addresses that reaches "
       "farthest. "
       "All addresses are of one family, which NCCL_SOCKET_FAMILY sets.",
       set_ifname},
      {"PARALET_ADDRESSES", "IP addresses separated by commas", "none",
       "Local addresses to use, in this order, instead of interfaces by name.", set_addresses},
      {"PARALET_RAILS", "order, none, or NAME=RAIL or NAME=RAIL:PLANE separated by commas, with numbers 0 to 32767",
       "order",
       "The rail and the plane of each interface, for NCCL's search of rings and trees. order: the PCI addresses of "
       "two "
       "or more devices in ascending order are rails 0, 1, ..; planes are undefined.",
       set_rails},
  };
  for (const Option& option : options()) {
    if (option.variable == nullptr) continue;
    if (option.variable == kBackendVariable) {
      out.push_back(backend_parameter(option));
      continue;
    }
    out.push_back({option.variable, allowed_text(option), default_text(option), option.meaning,
                   [&option](Settings& settings, const std::string& text) { apply(settings, option, text); }});
  }
  out.push_back({"PARALET_FAULTS", fault_values(), "none",
                 "For tests: faults injected into received packets, as probabilities per packet. dead: the "
                 "probability per UDP source port that its path dies after dead_after packets.",
                 set_faults});
  return out;
}

}  // namespace

const std::vector<Parameter>& parameters() {
  static const auto& table = *new std::vector<Parameter>(make_parameters());  // NOLINT(cppcoreguidelines-owning-memory)
  return table;
}

const Parameter* find_parameter(std::string_view name) {
  const auto found = std::ranges::find(parameters(), name, &Parameter::name);
  return found != parameters().end() ? &*found : nullptr;
}

}  // namespace paralet::settings
