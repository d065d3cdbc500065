// SPDX-License-Identifier: Apache-2.0
#include "path_client/probe_owners.hpp"

#include <algorithm>

namespace paralet::path_client {

prober::Probe ProbeOwners::probe_of(const Owners::value_type& entry) {
  const auto& [target, port, ttl] = entry.first;
  const Owner& owner = entry.second;
  return {
      .target = target, .source_port = port, .ttl = ttl, .qpn = owner.qpn, .once = owner.once, .first = owner.first};
}

prober::Probe ProbeOwners::add(const Owner& owner, std::size_t target, std::uint16_t port, std::uint8_t ttl) {
  return probe_of(*owners_.emplace(Key{target, port, ttl}, owner));
}

std::optional<prober::Probe> ProbeOwners::remove(std::optional<std::uint64_t> ask, std::size_t target,
                                                 std::uint16_t port, std::uint8_t ttl) {
  const auto [first, end] = owners_.equal_range(Key{target, port, ttl});
  const auto found = std::find_if(first, end, [&ask](const auto& entry) { return entry.second.ask == ask; });
  if (found == end) return std::nullopt;
  const prober::Probe probe = probe_of(*found);
  owners_.erase(found);
  return probe;
}

std::optional<ProbeOwners::Owner> ProbeOwners::settled(const prober::Probe& probe) {
  const auto [first, end] = owners_.equal_range(Key{probe.target, probe.source_port, probe.ttl});
  const auto found = std::find_if(first, end, [&probe](const auto& entry) { return probe_of(entry) == probe; });
  if (found == end) return std::nullopt;
  const Owner owner = found->second;
  owners_.erase(found);
  return owner;
}

std::vector<ProbeOwners::Owned> ProbeOwners::served(const prober::Probe& probe, Nanos sent_at) {
  std::vector<Owned> out;
  const auto [first, end] = owners_.equal_range(Key{probe.target, probe.source_port, probe.ttl});
  for (auto entry = first; entry != end;) {
    const auto next = std::next(entry);
    if (entry->second.qpn == probe.qpn && entry->second.since <= sent_at) {
      out.emplace_back(probe_of(*entry), entry->second);
      owners_.erase(entry);
    }
    entry = next;
  }
  return out;
}

}  // namespace paralet::path_client
