// SPDX-License-Identifier: Apache-2.0
// PlannedPorts that hands out what a test has given it, and records what it was asked.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planned_ports.hpp"

namespace paralet::pin {

class __attribute__((visibility("default"))) GivenPorts : public PlannedPorts {
 public:
  std::optional<Planned> ask(const Flow& flow, Nanos deadline) override;
  std::optional<Planned> ask_again(std::uint64_t id, Nanos deadline) override;
  void give_back(std::uint64_t id) override;
  void sent(std::uint64_t id, std::uint64_t bytes) override;
  void not_pinned(const Flow& flow, std::string_view why) override;
  void on_move(std::function<bool(std::uint64_t id, std::uint16_t port)> moved) override;

  /// The plan moves the flow that has this port.
  void move(std::uint16_t from, std::uint16_t to);

  std::mutex mutex;
  std::vector<std::uint16_t> ports;  ///< that come next
  std::vector<Flow> asked;
  std::map<std::uint64_t, std::uint16_t> held;
  std::vector<std::pair<std::string, std::string>> refused;  ///< what and why
  std::function<void(std::uint64_t)> while_asking;           ///< called with the flow's id
  std::function<bool(std::uint64_t, std::uint16_t)> moved;

 private:
  std::uint64_t next_id_ = 1;
};

/// That of the process. It begins with the ports of the variable PARALET_TEST_PORTS.
__attribute__((visibility("default"))) GivenPorts& given_ports();

}  // namespace paralet::pin
