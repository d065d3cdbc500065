// SPDX-License-Identifier: Apache-2.0
#include "service_ports.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "base/random.hpp"

namespace paralet::pin {
namespace {

/// Where a client receives. Nothing does here: planned ports of connections have no acknowledgements to plan.
constexpr std::uint16_t kNowhere = 1;

PeerName peer_of(const KnownFlow& flow) { return {flow.course.remote, flow.course.remote_port}; }

}  // namespace

path_client::Hello ServicePorts::hello(const Key& key) const {
  const auto& [tcp, local, slot] = key;
  return {.token = options_.token,
          .device = {local, kNowhere},
          .instance = (std::uint64_t{random_u32()} << 32) | random_u32(),
          .lanes = slot + 1,
          .tcp = tcp,
          .fixed = tcp,  // queue pairs of some NICs can move
          .paths = true};
}

ServicePorts::Client& ServicePorts::client(const Key& key) {
  Client& client = clients_[key];
  if (!client.client) client.client.emplace(options_, hello(key), client.mailbox, wake_);
  return client;
}

void ServicePorts::connect(const std::vector<IpAddress>& addresses) {
  for (const IpAddress& address : addresses) {
    try {
      client({true, address, Slot{0}});
    } catch (const DeviceError&) {
      return;  // no thread for it now; there may be one when a flow needs it
    }
  }
}

void ServicePorts::join(const Member& member, const std::vector<IpAddress>& addresses) {
  for (const IpAddress& address : addresses) {
    Client& client = members_[{member, address}];
    if (client.client) continue;  // another process of this rank has said so
    path_client::Hello said = hello({true, address, Slot{0}});
    said.job = member.job;
    said.rank = {.rank = member.rank, .ranks = member.ranks};
    try {
      client.client.emplace(options_, std::move(said), client.mailbox, [] {});
    } catch (const DeviceError&) {
      return;  // no thread for it: the ring of ranks is not planned
    }
  }
}

void ServicePorts::leave(const Member& member) {
  std::erase_if(members_, [&](const auto& each) { return each.first.first == member; });
}

void ServicePorts::tell(const Flows::News& news) {
  // A full queue loses an event: the flow then has no port, or an elephant stays open until the client ends. A port
  // that is lost with `begun` is told with the next announcement.
  if (news.kind == Flows::News::Kind::kAnnounce) {
    const path_client::Announce event{.id = news.flow.id,
                                      .peer = peer_of(news.flow),
                                      .bytes = news.flow.announced.value_or(0),
                                      .port = news.flow.course.tcp ? news.flow.port : std::uint16_t{0}};
    static_cast<void>(client(key(news.flow)).mailbox.post(event));
  } else if (const auto found = clients_.find(key(news.flow)); found != clients_.end()) {
    static_cast<void>(found->second.mailbox.post(path_client::Release{.id = news.flow.id}));
  }
}

void ServicePorts::begun(const KnownFlow& flow) {
  if (!flow.course.tcp) return;  // a queue pair may move
  if (const auto found = clients_.find(key(flow)); found != clients_.end()) {
    static_cast<void>(found->second.mailbox.post(path_client::Begun{.id = flow.id, .port = flow.port}));
  }
}

std::vector<std::pair<Course, Slot>> ServicePorts::take() {
  std::vector<std::pair<Course, Slot>> changed;
  for (auto& [key, client] : clients_) {
    if (!client.mailbox.has_update()) continue;
    auto fresh = client.mailbox.take_update();
    if (!fresh) continue;
    client.now = std::move(fresh);
    const auto& [tcp, local, slot] = key;
    const std::uint64_t before = client.taken;
    for (const auto& [peer, paths] : client.now->peers) {
      if (paths.serial <= before) continue;
      client.taken = std::max(client.taken, paths.serial);
      changed.emplace_back(Course{.tcp = tcp, .local = local, .remote = peer.address, .remote_port = peer.port}, slot);
    }
  }
  return changed;
}

const path_client::PeerPaths* ServicePorts::answer(const KnownFlow& flow) const {
  const auto found = clients_.find(key(flow));
  if (found == clients_.end() || found->second.now == nullptr) return nullptr;
  const auto paths = found->second.now->peers.find(peer_of(flow));
  return paths != found->second.now->peers.end() && paths->second.answers == flow.id ? &paths->second : nullptr;
}

std::optional<std::uint16_t> ServicePorts::port(const KnownFlow& flow) const {
  const path_client::PeerPaths* const answered = answer(flow);
  if (answered == nullptr) return std::nullopt;
  return flow.slot < answered->ports.size() ? answered->ports[flow.slot] : std::uint16_t{0};
}

path_client::Path ServicePorts::path(const KnownFlow& flow) const {
  const path_client::PeerPaths* const answered = answer(flow);
  if (answered == nullptr || answered->paths.empty()) return {};
  return answered->paths[std::min<std::size_t>(flow.slot, answered->paths.size() - 1)];
}

bool ServicePorts::measures(const KnownFlow& flow) const {
  const auto found = clients_.find(key(flow));
  return found != clients_.end() && found->second.now != nullptr && found->second.now->measured;
}

bool ServicePorts::away(Nanos now) const {
  bool tried = false;
  for (const auto& [key, client] : clients_) {
    if (!client.client) continue;
    const auto counters = client.client->counters();
    if (counters.connected) return false;
    tried = tried || now >= counters.since + kPatience;
  }
  return tried;
}

std::size_t ServicePorts::connected() const {
  std::size_t count = 0;
  for (const auto& [key, client] : clients_) count += client.client && client.client->counters().connected ? 1 : 0;
  return count;
}

}  // namespace paralet::pin
