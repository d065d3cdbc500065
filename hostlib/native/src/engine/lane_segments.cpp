// SPDX-License-Identifier: Apache-2.0
#include "engine/lane_segments.hpp"

#include <map>
#include <stdexcept>

#include "wire/routing_header.hpp"

namespace paralet {
namespace {

IpAddress node(const std::string& text, const char* what) {
  const auto address = parse_address(text);
  if (!address || address->is_ipv4() || address->is_link_local()) {
    throw std::invalid_argument("'" + text + "', " + what + ", is not an IPv6 address such as fd00::1");
  }
  return *address;
}

/// Checks the lanes of one peer against its ports.
void check_peer(const std::string& peer, const std::vector<std::vector<IpAddress>>& lanes,
                const std::vector<std::uint16_t>& ports, const std::string& name, const std::string& ports_name) {
  if (ports.size() != lanes.size()) {
    throw std::invalid_argument(name + " for " + peer + " has " + std::to_string(lanes.size()) +
                                " lanes: " + ports_name + " must list as many source ports for that peer");
  }
  std::map<std::uint16_t, std::size_t> first;  // lane of each port
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    if (lanes[first.try_emplace(ports[lane], lane).first->second] == lanes[lane]) continue;
    throw std::invalid_argument("source port " + std::to_string(ports[lane]) + " for peer " + peer +
                                " has two lists of segments: give each its own port");
  }
}

}  // namespace

void add_segments(LaneSegments& table, const std::string& peer, const std::vector<std::vector<std::string>>& lanes) {
  auto& out = table[node(peer, "a peer with segments")];
  for (const auto& lane : lanes) {
    if (lane.empty() || lane.size() > wire::kMaxSegments) {
      throw std::invalid_argument("a lane to peer " + peer + " has " + std::to_string(lane.size()) +
                                  " segments: give it 1 to " + std::to_string(wire::kMaxSegments));
    }
    auto& segments = out.emplace_back();
    for (const std::string& segment : lane) segments.push_back(node(segment, "a segment"));
  }
}

void check_segments(const LaneSegments& table, const std::map<IpAddress, std::vector<std::uint16_t>>& ports,
                    const std::string& name, const std::string& ports_name) {
  for (const auto& [peer, lanes] : table) {
    const auto found = ports.find(peer);
    check_peer(format_address(peer), lanes, found == ports.end() ? std::vector<std::uint16_t>() : found->second, name,
               ports_name);
  }
}

}  // namespace paralet
