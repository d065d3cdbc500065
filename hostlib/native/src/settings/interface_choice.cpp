// SPDX-License-Identifier: Apache-2.0
#include "settings/interface_choice.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

namespace paralet::settings {
namespace {

/// How far packets to an address come: 0 for everywhere, 1 for its link (169.254.0.0/16, RFC 3927; IPv6's link-local
/// addresses), 2 for its host (127.0.0.0/8, ::1).
int scope(const IpAddress& address) {
  constexpr IpAddress kLoopback(IpAddress::Bytes{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1});
  if (!address.is_ipv4()) return address == kLoopback ? 2 : address.is_link_local() ? 1 : 0;
  const std::uint32_t bits = address.ipv4();
  return bits >> 24 == 127 ? 2 : bits >> 16 == 0xA9FE ? 1 : 0;
}

/// The interfaces that the filter admits, each with the best of its addresses.
std::vector<Interface> admitted(const std::vector<Interface>& all, const NameFilter& filter,
                                const Selection& selection) {
  std::vector<Interface> out;
  std::ranges::copy_if(all, std::back_inserter(out), [&](const Interface& i) {
    return filter.admits(without_label(i.name)) && i.address.is_ipv4() == selection.ipv4.value_or(i.address.is_ipv4());
  });
  if (out.empty()) return out;
  const auto reach = [](const Interface& i) { return std::pair(scope(i.address), !i.address.is_ipv4()); };
  // Devices of different families do not connect to each other.
  const bool farthest = std::ranges::min_element(out, {}, reach)->address.is_ipv4();
  const bool rather = selection.rather_ipv4.value_or(farthest);
  const bool family =
      std::ranges::any_of(out, [&](const Interface& i) { return i.address.is_ipv4() == rather; }) ? rather : farthest;
  std::erase_if(out, [family](const Interface& i) { return i.address.is_ipv4() != family; });
  std::vector<Interface> devices;
  for (const Interface& candidate : out) {
    const auto known = std::ranges::find_if(
        devices, [&](const Interface& d) { return without_label(d.name) == without_label(candidate.name); });
    if (known == devices.end()) {
      devices.push_back(candidate);
    } else if (reach(candidate) < reach(*known)) {
      *known = candidate;
    }
  }
  return devices;
}

}  // namespace

std::string without_label(const std::string& name) { return name.substr(0, name.find(':')); }

std::optional<NameFilter> NameFilter::parse(std::string_view text) {
  NameFilter filter;
  filter.text_ = text;
  const auto take = [&text](char mark) {
    const bool found = text.starts_with(mark);
    if (found) text.remove_prefix(1);
    return found;
  };
  filter.exclude_ = take('^');
  filter.exact_ = take('=');
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    std::string_view name = text.substr(0, comma);
    name = name.substr(0, name.find(':'));  // NCCL allows a port after a colon
    if (!name.empty()) filter.names_.emplace_back(name);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return filter.names_.empty() ? std::nullopt : std::optional(filter);
}

bool NameFilter::admits(std::string_view name) const {
  const bool listed = std::ranges::any_of(
      names_, [&](const std::string& entry) { return exact_ ? name == entry : name.starts_with(entry); });
  return listed != exclude_;
}

std::vector<Interface> select(const std::vector<Interface>& all, const Selection& selection) {
  std::vector<Interface> up;
  std::ranges::copy_if(all, std::back_inserter(up), &Interface::up);
  if (!selection.addresses.empty()) {
    std::vector<Interface> out;
    for (const IpAddress& address : selection.addresses) {
      const auto found = std::ranges::find_if(up, [&address](const Interface& i) { return owns(i, address); });
      if (found == up.end()) return {};
      out.push_back(*found);
      out.back().address = address;
    }
    return out;
  }
  if (selection.names) return admitted(up, *selection.names, selection);
  // NCCL's order for sockets: physical interfaces, else Docker's bridge, loopback, libvirt's bridge.
  for (const std::string_view names : {"^docker,lo,virbr", "docker", "lo", "virbr"}) {
    if (auto found = admitted(up, *NameFilter::parse(names), selection); !found.empty()) return found;
  }
  return {};
}

std::string other_addresses(const std::vector<Interface>& all, const Interface& device) {
  std::string out;
  for (const Interface& other : all) {
    if (without_label(other.name) != without_label(device.name) || other.address == device.address) continue;
    out += (out.empty() ? "" : ", ") + format_address(other.address);
  }
  return out;
}

}  // namespace paralet::settings
