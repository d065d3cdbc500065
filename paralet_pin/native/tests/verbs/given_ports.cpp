// SPDX-License-Identifier: Apache-2.0
#include "given_ports.hpp"

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace paralet::pin {

std::optional<Planned> GivenPorts::ask(const Flow& flow, Nanos /*deadline*/) {
  std::unique_lock lock(mutex);
  asked.push_back(flow);
  if (ports.empty()) return std::nullopt;
  const Planned out{.id = next_id_++, .local = flow.local, .port = ports.front()};
  ports.erase(ports.begin());
  held[out.id] = out.port;
  lock.unlock();
  if (while_asking) while_asking(out.id);
  return out;
}
std::optional<Planned> GivenPorts::ask_again(std::uint64_t /*id*/, Nanos /*deadline*/) { return std::nullopt; }
void GivenPorts::give_back(std::uint64_t id) {
  const std::lock_guard lock(mutex);
  held.erase(id);
}
void GivenPorts::sent(std::uint64_t /*id*/, std::uint64_t /*bytes*/) {}
void GivenPorts::not_pinned(const Flow& flow, std::string_view why) {
  const std::lock_guard lock(mutex);
  refused.emplace_back(flow.what, why);
}
void GivenPorts::on_move(std::function<bool(std::uint64_t, std::uint16_t)> what) { moved = std::move(what); }

void GivenPorts::move(std::uint16_t from, std::uint16_t to) {
  std::uint64_t id = 0;
  {
    const std::lock_guard lock(mutex);
    const auto found = std::ranges::find(held, from, [](const auto& each) { return each.second; });
    id = found->first;
    found->second = to;
  }
  moved(id, to);
}

GivenPorts& given_ports() {
  static auto& one = *[] {
    auto* made = new GivenPorts;  // NOLINT(cppcoreguidelines-owning-memory): outlives all users
    const char* given = std::getenv("PARALET_TEST_PORTS");
    std::istringstream text(given != nullptr ? given : "");
    for (std::uint16_t port = 0; text >> port;) made->ports.push_back(port);
    return made;
  }();
  return one;
}

PlannedPorts* planned_ports() { return &given_ports(); }

}  // namespace paralet::pin
