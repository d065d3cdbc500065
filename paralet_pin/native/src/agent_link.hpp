// SPDX-License-Identifier: Apache-2.0
// The way from a program to the agent. Nothing is kept between two requests, neither a descriptor nor a lock nor
// memory, so a fork, an exec or a close of all descriptors between them changes nothing.
#pragma once

#include <optional>

#include "agent_protocol.hpp"

namespace paralet::pin {

/// Where the agent listens: PARALET_PIN_AGENT, as it was when the process began.
class AgentLink {
 public:
  /// Nothing is pinned where the variable is missing or too long, nor in a setuid program (getauxval, AT_SECURE).
  AgentLink();
  /// The agent at this path; nothing is pinned where it is empty or too long.
  explicit AgentLink(std::string_view path);

  [[nodiscard]] bool on() const { return length_ != 0; }
  /// Waits at most `request.wait`, and 0.1 s more for an agent that is slow. Nothing when the agent is gone or slow.
  /// Async-signal-safe, and changes errno.
  [[nodiscard]] std::optional<Reply> ask(const Request& request) const;
  /// A request without a reply; one that finds no agent is lost. Async-signal-safe, and changes errno.
  void tell(const Request& request) const;

 private:
  [[nodiscard]] int send(const Request& request) const;

  std::array<char, 108> path_{};
  std::size_t length_ = 0;
};

/// Writes a sentence to standard error, the first time in this process and its forked children.
void say_once(std::string_view sentence);

}  // namespace paralet::pin
