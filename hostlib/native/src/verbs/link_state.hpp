// SPDX-License-Identifier: Apache-2.0
// Whether the link of a port is up, and since when.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/clock.hpp"
#include "base/log.hpp"

namespace paralet::verbs {

/// Queue pairs survive a short failure of the link: the NIC retransmits what was lost.
class LinkState {
 public:
  /// `port` names the port in the log. Queue pairs fail when the link is down for `retry_time`.
  LinkState(std::string port, Nanos retry_time, Log log)
      : port_(std::move(port)), retry_time_(retry_time), log_(std::move(log)) {}

  /// The link went up or down, or is as it was. Logs each change.
  void set(bool up, Nanos now);
  [[nodiscard]] bool down() const { return down_; }
  /// When the queue pairs fail, kNever while the link is up.
  [[nodiscard]] Nanos deadline() const { return deadline_; }
  /// Whether the deadline has passed. True once for each failure of the link.
  [[nodiscard]] bool expire(Nanos now);
  /// Backend::port_trouble.
  [[nodiscard]] std::string trouble(Nanos now) const;

 private:
  std::string port_;
  Nanos retry_time_;
  Log log_;
  bool down_ = false;
  Nanos down_at_ = 0;
  std::optional<Nanos> up_at_;  ///< when it came back last
  Nanos deadline_ = kNever;
};

}  // namespace paralet::verbs
