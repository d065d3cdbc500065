// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "base/clock.hpp"
#include "base/ip_address.hpp"
#include "base/printable.hpp"

namespace paralet::pin {
namespace {

nlohmann::json of_course(const Course& course) {
  return {{"protocol", course.tcp ? "tcp" : "udp"},
          {"local", format_address(course.local)},
          {"remote", format_address(course.remote)},
          {"remote_port", course.remote_port}};
}

/// The number of the namespace whose ids of processes the agent uses; 0 when it cannot be known.
ino_t pid_namespace() {
  struct stat own {};
  return ::stat("/proc/self/ns/pid", &own) == 0 ? own.st_ino : 0;
}

}  // namespace

std::string report_of(const AgentState& state, const Flows& flows, Nanos now) {
  nlohmann::json pinned = nlohmann::json::array();
  nlohmann::json waiting = nlohmann::json::array();
  for (const auto& [id, flow] : flows.all()) {
    nlohmann::json entry = of_course(flow.course);
    entry.update({{"pid", flow.pid}, {"what", printable(flow.what)}});
    if (flow.port == 0) {
      entry["waited_s"] = to_seconds(now - flow.begun);
      waiting.push_back(std::move(entry));
      continue;
    }
    entry.update(
        {{"port", flow.port},
         {"planned_port", flow.planned_port},
         {"path", flow.path},
         {"probed_s", flow.probed_at == 0 ? nlohmann::json() : nlohmann::json(to_seconds(now - flow.probed_at))},
         {"bytes", flow.bytes},
         {"timeouts", flow.timeouts},
         {"elephant", flow.announced.value_or(0) >= Flows::kElephant}});
    pinned.push_back(std::move(entry));
  }
  nlohmann::json others = nlohmann::json::array();
  for (const NotPinned& flow : flows.not_pinned()) {
    nlohmann::json entry = of_course(flow.course);
    entry.update({{"pid", flow.pid}, {"what", printable(flow.what)}, {"why", printable(flow.why)}});
    others.push_back(std::move(entry));
  }
  return nlohmann::json{{"format", "paralet-pin-1"},
                        {"job", printable(state.job)},
                        {"pid_namespace", pid_namespace()},
                        {"path_service", state.asks_service},
                        {"clients", state.clients},
                        {"connected", state.connected},
                        {"asked", state.asked},
                        {"given", state.given},
                        {"pinned", std::move(pinned)},
                        {"not_pinned", std::move(others)},
                        {"waiting", std::move(waiting)},
                        {"longest_wait_s", to_seconds(state.longest_wait)}}
      .dump();
}

}  // namespace paralet::pin
