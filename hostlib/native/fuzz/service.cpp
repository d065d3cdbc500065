// SPDX-License-Identifier: Apache-2.0
// Fuzzes lines of the path service against what acts on them: the session of the path client, the asks for probes and
// the watches. Whatever a line says, what it asks for stays within the bounds of the protocol, every ask is answered
// with each of its ports, and every warning can be shown on a terminal.
//
// An input is text. A line that starts with a byte below 32 is an event of this host, all others come from the service.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "path_client/asks.hpp"
#include "path_client/session.hpp"
#include "path_client/watches.hpp"
#include "script.hpp"
#include "wire/wire.hpp"

namespace paralet::fuzz {
namespace {

using namespace path_client;  // NOLINT(google-build-using-namespace): this file is about it

constexpr PeerName kHere = 0x0A000001;
constexpr PeerName kThere = 0x0A000102;  // the peer of the corpus

bool possible(std::uint16_t port) { return port >= wire::kFirstEntropyPort; }

void check_bounds(const ProbeAsk& ask) {
  require(!ask.ports.empty() && ask.ports.size() <= kMaxProbedPorts && ask.ttl > 0 && ask.rate >= 0);
  require(ask.until.size() <= kMaxProbedPorts);
  require(std::ranges::all_of(ask.ports, possible));
}

void check_bounds(const Watch& watch) {
  require(watch.ports.size() <= kMaxProbedPorts && watch.ttl > 0 && watch.period >= kSecond / 10);
  require(std::ranges::all_of(watch.ports, [](const Watch::Port& one) { return possible(one.port); }));
}

void check_bounds(const Assignments& table) {
  for (const auto& [peer, paths] : table.peers) {
    require(paths.ports.size() <= kMaxPorts && paths.rate_bps >= 0);
    require(std::ranges::all_of(paths.ports, possible));
  }
}

class Host {
 public:
  void connect() {
    session_.on_connected(out_);
    check_said();
  }
  void lose() {
    session_.on_disconnected();
    require(!session_.welcome() && session_.take_orders().empty());
    asks_ = {};
    watches_ = {};
    open_.clear();
    connect();
  }
  void on_event(std::string_view line) {
    const std::uint64_t id = line.size() > 1 ? static_cast<std::uint8_t>(line[1]) : 0;
    switch (line[0]) {
      case 1:
        session_.on_event(Announce{.id = id, .peer = kThere, .bytes = 1}, out_);
        break;
      case 2:
        session_.on_event(Release{.id = id}, out_);
        break;
      case 3:
        now_ += kSecond;
        break;
      default:
        lose();
        break;
    }
    act();
  }
  void on_line(std::string_view line) {
    if (session_.on_line(line, now_, out_) != Session::Verdict::kContinue) lose();
    act();
  }
  /// Nobody answers any more: what is open ends in time.
  void end() {
    now_ += Asks::kLongest;
    asks_.expire(now_);
    take_answered();
    require(open_.empty());
  }

 private:
  /// What the client does after each line.
  void act() {
    for (const unsigned char letter : session_.take_warning()) require(letter >= 0x20 && letter < 0x7F);
    if (session_.take_wish()) {
      session_.offer_probes(100, out_);
      session_.announce_open(out_);
    }
    for (const ProbeOrder& order : session_.take_orders()) take(order);
    if (const auto table = session_.take_changes()) check_bounds(*table);
    session_.on_time(now_, out_);
    check_said();
    probe();
    asks_.expire(now_);
    take_answered();
  }
  void take(const ProbeOrder& order) {
    if (const auto* ask = std::get_if<ProbeAsk>(&order)) {
      check_bounds(*ask);
      if (asks_.add(*ask, now_)) open_[ask->ask] = ask->ports;
    } else if (const auto* watch = std::get_if<Watch>(&order)) {
      check_bounds(*watch);
      watches_.set(*watch, now_);
      require(watches_.size() <= Watches::kMostPorts);
    }
  }
  /// A router answers every other port.
  void probe() {
    const auto answer = [](std::uint16_t port) {
      return port % 2 == 0
                 ? ProbedPort{.port = port, .answer = PortAnswer::kHop, .router = kHere.address, .round_trip = 1}
                 : ProbedPort{.port = port, .answer = PortAnswer::kNone};
    };
    while (const auto due = asks_.next(now_)) asks_.settled(due->ask, answer(due->port));
    while (const auto due = watches_.next(now_)) watches_.settled(*due, answer(due->port));
    for (const Moved& moved : watches_.take_moved()) require(moved.answers.size() <= kMaxProbedPorts);
  }
  void take_answered() {
    for (const Probed& probed : asks_.take_answered()) {
      const auto asked = open_.find(probed.ask);
      require(asked != open_.end());
      require(std::ranges::equal(probed.answers, asked->second, {}, &ProbedPort::port));
      open_.erase(asked);
    }
  }
  /// What goes to the service is lines of JSON.
  void check_said() {
    require(out_.empty() || out_.back() == '\n');
    for (std::size_t begin = 0; begin < out_.size();) {
      const std::size_t end = out_.find('\n', begin);
      require(nlohmann::json::accept(out_.substr(begin, end - begin)));
      begin = end + 1;
    }
    out_.clear();
  }

  Session session_{Hello{.token = "t", .device = kHere, .instance = 1, .lanes = 2}, "job"};
  Asks asks_;
  Watches watches_;
  std::map<std::uint64_t, std::vector<std::uint16_t>> open_;
  Nanos now_ = kSecond;
  std::string out_;
};

}  // namespace
}  // namespace paralet::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string text;
  for (const std::byte byte : paralet::fuzz::Script(data, size).bytes(size)) text += static_cast<char>(byte);
  paralet::fuzz::Host host;
  host.connect();
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (!line.empty() && static_cast<unsigned char>(line[0]) < 0x20) {
      host.on_event(line);
    } else {
      host.on_line(line);
    }
    begin = end + 1;
  }
  host.end();
  return 0;
}
