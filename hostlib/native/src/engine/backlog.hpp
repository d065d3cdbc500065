// SPDX-License-Identifier: Apache-2.0
// Connections that wait for accept(), by the host that they come from. No host keeps another's from being accepted, and
// those that ended meanwhile do not pile up.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>

#include "base/ip_address.hpp"
#include "engine/request.hpp"

namespace paralet {

class Backlog {
 public:
  static constexpr std::size_t kMostOfHost = 4096;
  explicit Backlog(std::size_t most_of_host = kMostOfHost) : most_of_host_(most_of_host) {}

  /// Adds a connection. Returns the one that had to go for it: nullptr, the oldest of the same host that has ended, or,
  /// if none has ended, `connection` itself.
  std::shared_ptr<Connection> add(std::shared_ptr<Connection> connection);
  /// The oldest connection of the next host in turn, nullptr when there is none. One that has ended, which only tells
  /// that its peer is gone, comes when no other waits.
  std::shared_ptr<Connection> take();

 private:
  using Queue = std::deque<std::shared_ptr<Connection>>;
  std::size_t most_of_host_;
  std::map<IpAddress, Queue> hosts_;  ///< no queue is empty
  IpAddress last_;                    ///< host of the last connection taken
};

}  // namespace paralet
