// SPDX-License-Identifier: Apache-2.0
#include "engine/backlog.hpp"

#include <algorithm>
#include <utility>

namespace paralet {
namespace {

bool ended(const std::shared_ptr<Connection>& connection) { return connection->failure != Failure::kNone; }

}  // namespace

std::shared_ptr<Connection> Backlog::add(std::shared_ptr<Connection> connection) {
  Queue& queue = hosts_[connection->peer_address];
  std::shared_ptr<Connection> dropped;
  if (queue.size() >= most_of_host_) {
    const auto oldest = std::ranges::find_if(queue, ended);
    if (oldest == queue.end()) return connection;
    dropped = std::move(*oldest);
    queue.erase(oldest);
  }
  queue.push_back(std::move(connection));
  return dropped;
}

std::shared_ptr<Connection> Backlog::take() {
  const auto take_from = [this](auto host, const auto& place) {
    std::shared_ptr<Connection> connection = std::move(*place);
    host->second.erase(place);
    last_ = host->first;
    if (host->second.empty()) hosts_.erase(host);
    return connection;
  };
  for (const bool wanted : {false, true}) {
    auto host = hosts_.upper_bound(last_);
    for (std::size_t i = 0; i < hosts_.size(); ++i, ++host) {
      if (host == hosts_.end()) host = hosts_.begin();
      const auto place = std::ranges::find(host->second, wanted, ended);
      if (place != host->second.end()) return take_from(host, place);
    }
  }
  return nullptr;
}

}  // namespace paralet
