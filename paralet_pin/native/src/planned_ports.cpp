// SPDX-License-Identifier: Apache-2.0
#include "planned_ports.hpp"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>

#include "agent_link.hpp"
#include "kept_errno.hpp"

namespace paralet::pin {
namespace {

constexpr Nanos kMovesWait = 1 * kSecond;
constexpr Nanos kMovesPause = 50 * kMillisecond;

Request request_of(RequestKind kind, const Flow& flow) {
  return {.kind = kind,
          .tcp = static_cast<std::uint8_t>(flow.protocol == Protocol::kTcp),
          .remote_port = flow.remote_port,
          .local = flow.local,
          .remote = flow.remote,
          .bytes = flow.declared_bytes,
          .what = text_of(flow.what)};
}

/// Ports of the agent.
class AgentPorts final : public PlannedPorts {
 public:
  [[nodiscard]] bool on() const { return link_.on(); }

  std::optional<Planned> ask(const Flow& flow, Nanos deadline) override {
    return planned(request_of(RequestKind::kAsk, flow), deadline);
  }
  std::optional<Planned> ask_again(std::uint64_t id, Nanos deadline) override {
    return planned({.kind = RequestKind::kAskAgain, .id = id}, deadline);
  }
  void give_back(std::uint64_t id) override { tell({.kind = RequestKind::kGiveBack, .id = id}); }
  void sent(std::uint64_t id, std::uint64_t bytes) override {
    tell({.kind = RequestKind::kSent, .id = id, .bytes = bytes});
  }
  void not_pinned(const Flow& flow, std::string_view why) override {
    Request request = request_of(RequestKind::kNotPinned, flow);
    request.why = text_of(why);
    tell(request);
  }
  void on_move(std::function<bool(std::uint64_t, std::uint16_t)> moved) override {
    const KeptErrno kept;
    const std::lock_guard lock(mutex_);
    const bool first = !moved_;
    moved_ = std::move(moved);
    if (!first) return;
    try {
      std::thread([this] { follow_moves(); }).detach();
    } catch (const std::system_error&) {
      moved_ = nullptr;  // no more threads: flows stay where they are
    }
  }

 private:
  std::optional<Planned> planned(Request request, Nanos deadline) const {
    const KeptErrno kept;
    request.wait = std::max<Nanos>(deadline - now(), 0);
    const auto reply = link_.ask(request);
    if (!reply || reply->port == 0) return std::nullopt;
    return Planned{.id = reply->id, .local = reply->local, .port = reply->port};
  }
  void tell(const Request& request) const {
    const KeptErrno kept;
    link_.tell(request);
  }
  [[noreturn]] void follow_moves() {
    for (Request request{.kind = RequestKind::kMoves, .wait = kMovesWait};;) {
      const auto reply = link_.ask(request);
      request.id = 0;
      if (reply && reply->id != 0) {
        if (moved_(reply->id, reply->port)) {
          request.id = reply->id;
          request.moved_to = reply->port;
        }
        continue;
      }
      const timespec pause{.tv_sec = 0, .tv_nsec = kMovesPause};
      ::nanosleep(&pause, nullptr);
    }
  }

  AgentLink link_;
  std::mutex mutex_;
  std::function<bool(std::uint64_t, std::uint16_t)> moved_;  ///< set before its thread begins
};

}  // namespace

PlannedPorts* planned_ports() {
  // Never destroyed: threads of the program may still connect while it exits.
  static auto* ports = new AgentPorts();  // NOLINT(cppcoreguidelines-owning-memory)
  return ports->on() ? ports : nullptr;
}

}  // namespace paralet::pin
