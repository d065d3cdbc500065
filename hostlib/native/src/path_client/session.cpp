// SPDX-License-Identifier: Apache-2.0
#include "path_client/session.hpp"

#include <algorithm>

namespace paralet::path_client {
namespace {

template <typename... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <typename... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

}  // namespace

// -- from the data path -------------------------------------------------------------------------------------------

void Session::on_event(const Event& event, std::string& out) {
  std::visit(Overloaded{
                 [&](const Announce& a) {
                   const auto [found, fresh] = open_.try_emplace(a.id);
                   found->second.announce = a;
                   found->second.answered = false;
                   if (a.port != 0) found->second.port = a.port;
                   if (fresh) elephants_[a.peer] = a.id;
                   announce(found->second, out);
                 },
                 [&](const Begun& b) {
                   const auto found = open_.find(b.id);
                   if (found == open_.end()) return;
                   found->second.port = b.port;
                   if (!found->second.answered) announce(found->second, out);  // its port is of another connection
                 },
                 [&](const Release& r) { release(r, out); },
                 [&](const Measured& m) {
                   if (!welcome_ || !open_.contains(m.id)) return;
                   Measured& sum = measured_[m.id];
                   sum.id = m.id;
                   sum.bytes += m.bytes;
                   sum.duration += m.duration;
                   sum.retransmits += m.retransmits;
                   sum.rtt = m.rtt;
                 },
                 [&](const Report& r) {
                   if (welcome_ && open_.contains(r.id)) out += encode(r);
                 },
                 [&](const LanesConnected& c) {
                   if (!qpns_.contains(c.peer) && qpns_.size() >= kMaxPeers) return;
                   std::vector<std::uint32_t>& known = qpns_[c.peer];
                   known.resize(std::max(known.size(), c.first + c.qpns.size()));
                   std::ranges::copy(c.qpns, known.begin() + c.first);
                   tell_lanes(c.peer);
                 },
             },
             event);
}

void Session::announce(const Elephant& elephant, std::string& out) {
  if (!welcome_) return;
  out += encode(elephant.announce, job_, elephant.port);
  ++counters_.announces;
}

void Session::announce_all(bool again, std::string& out) {
  for (const auto& [id, elephant] : open_) {
    if (!again || !elephant.answered) announce(elephant, out);
  }
}

void Session::release(const Release& r, std::string& out) {
  const auto found = open_.find(r.id);
  if (found == open_.end()) return;
  const PeerName peer = found->second.announce.peer;
  open_.erase(found);
  measured_.erase(r.id);
  if (const auto current = elephants_.find(peer); current != elephants_.end() && current->second == r.id) {
    elephants_.erase(current);
  }
  if (welcome_) out += encode(r);
  // An assignment without an elephant is valid again. Without one, lanes keep their ports, so that a repeated transfer
  // starts on the same paths, but the rate limit ends.
  if (const auto given = pushed_.find(peer); given != pushed_.end()) {
    set(peer, {.ports = given->second.ports, .rate_bps = given->second.rate_bps});
  } else if (const auto paths = now_.peers.find(peer); paths != now_.peers.end()) {
    paths->second.rate_bps = 0;  // not published: the data path ends the limit by itself
    paths->second.answers = 0;
    paths->second.paths.clear();
  }
}

// -- the connection -----------------------------------------------------------------------------------------------

void Session::on_connected(std::string& out) {
  hello_.version = version_;
  hello_.voted = voted_.generation;
  out += encode(hello_);
}

void Session::on_disconnected() {
  if (welcome_) version_ = kVersion;  // the service may be a newer one next time
  changed_ = changed_ || welcome_;
  welcome_ = false;
  for (auto& [id, elephant] : open_) elephant.answered = false;
  pushed_.clear();
  measured_.clear();
  wish_.reset();
  probes_ = now_.measured = false;
  orders_.clear();
  again_at_ = kNever;
  generation_ = 0;
  now_.peers.clear();
  now_.connected = false;
  ++now_.connection;
}

Session::Verdict Session::on_line(std::string_view line, Nanos now, std::string& out) {
  return std::visit(
      Overloaded{
          [&](const Welcome& w) {
            if (welcome_) return invalid({.what = "a second welcome", .peer = {}});
            if (w.version > version_) {
              return invalid({.what = "a welcome of another version of the protocol", .peer = {}, .fatal = true});
            }
            if (w.generation != 0 && w.generation < hello_.generation) {
              warning_ = "it is of generation " + std::to_string(w.generation) + ", and generation " +
                         std::to_string(hello_.generation) + " has taken over from it";
              return Verdict::kDrop;
            }
            hello_.generation = std::max(hello_.generation, w.generation);
            welcome_ = now_.connected = changed_ = true;
            if (w.probe) {
              wish_ = w;  // `announce_open` follows
            } else {
              announce_all(false, out);
            }
            return Verdict::kContinue;
          },
          [&](const Assign& a) {
            if (!welcome_) return invalid({.what = "an assignment before the welcome", .peer = {}, .fatal = true});
            const auto elephant = a.id ? open_.find(*a.id) : open_.end();
            if (a.generation < generation_ || (a.id && elephant == open_.end())) {
              ++counters_.stale;
              return Verdict::kContinue;
            }
            if (a.id && elephant->second.announce.peer.address != a.peer.address) {
              return invalid({.what = "an assignment whose peer is not its elephant's", .peer = a.peer});
            }
            if (!a.id && !now_.peers.contains(a.peer) && now_.peers.size() >= kMaxPeers) {
              return invalid({.what = "assignments for more than 65536 peers", .peer = {}});
            }
            assign(a);
            return Verdict::kContinue;
          },
          [&](const Refusal& r) {
            if (r.code == "busy") {
              again_at_ = std::min(again_at_, now + kBusyDelay);
              return Verdict::kContinue;
            }
            if (r.code == "version" && !welcome_) {
              const bool oldest = version_ == kOldestVersion;
              version_ = oldest ? kVersion : kOldestVersion;
              if (!oldest) return Verdict::kSayOlder;
            }
            warning_ = "it says " + r.code + ": " + r.text;
            return Verdict::kDrop;
          },
          [&](const ProbeAsk& a) { return order(a); },
          [&](const Watch& w) { return order(w); },
          [&](const VoteAsk& a) {
            vote(a, out);
            return Verdict::kContinue;
          },
          [&](const Ignored&) { return Verdict::kContinue; },
          [&](const InvalidMessage& n) { return invalid(n); },
      },
      decode(line));
}

void Session::assign(const Assign& a) {
  generation_ = a.generation;
  ++counters_.assigns;
  if (a.id) {
    Elephant& elephant = open_.at(*a.id);
    if (std::exchange(elephant.answered, true)) ++counters_.pushes;
    if (!a.ports.empty() && !std::exchange(elephant.assigned, true)) ++counters_.assigned;
    set(elephant.announce.peer, {.ports = a.ports, .rate_bps = a.rate_bps, .answers = *a.id, .paths = a.paths}, a.cut);
    return;
  }
  ++counters_.pushes;
  pushed_[a.peer] = {.ports = a.ports, .rate_bps = a.rate_bps};
  if (a.ports.empty()) pushed_.erase(a.peer);
  if (!elephants_.contains(a.peer)) set(a.peer, {.ports = a.ports, .rate_bps = a.rate_bps}, a.cut);
}

void Session::set(PeerName peer, PeerPaths paths, bool cut) {
  PeerPaths& before = now_.peers[peer];
  paths.rate_serial = ++serial_;
  paths.cut_serial = cut ? serial_ : before.cut_serial;
  const bool rate_alone = before.serial != 0 && before.ports == paths.ports && before.answers == paths.answers &&
                          before.paths == paths.paths && before.rate_bps != paths.rate_bps;
  paths.serial = rate_alone ? before.serial : serial_;
  before = std::move(paths);
  changed_ = true;
  tell_lanes(peer);
}

/// A generation gets one vote of this host. So two services that ask for it cannot both have those of most hosts.
void Session::vote(const VoteAsk& ask, std::string& out) {
  const Vote asked{.generation = ask.vote.generation, .service = ask.vote.service};
  const bool is_new = asked.generation > std::max(voted_.generation, hello_.generation);
  if (ask.vote.trial && (is_new || asked == voted_)) {
    out += encode(ask.vote);
    return;
  }
  if (is_new) voted_ = asked;
  if (voted_.generation != 0) out += encode(voted_);
}

void Session::offer_probes(double rate, std::string& out) {
  probes_ = now_.measured = true;
  out += encode_probe(rate);
  for (const auto& [peer, qpns] : qpns_) tell_lanes(peer);
}

Session::Verdict Session::order(ProbeOrder order) {
  if (!probes_) return invalid({.what = "an ask for probes, which this host has not offered", .peer = {}});
  orders_.push_back(std::move(order));
  return Verdict::kContinue;
}

/// The lanes to the peer have other QPs or other ports: probes from now on carry the QPNs of these.
void Session::tell_lanes(PeerName peer) {
  const auto known = qpns_.find(peer);
  if (!probes_ || known == qpns_.end()) return;
  const auto assigned = now_.peers.find(peer);
  const bool any = assigned != now_.peers.end();
  orders_.emplace_back(PeerLanes{
      .peer = peer, .qpns = known->second, .ports = any ? assigned->second.ports : std::vector<std::uint16_t>{}});
}

Session::Verdict Session::invalid(const InvalidMessage& n) {
  ++counters_.invalid;
  warning_ = "it sent " + n.what;
  if (n.fatal) return Verdict::kDrop;
  if (n.peer && now_.peers.contains(*n.peer)) {
    pushed_.erase(*n.peer);
    set(*n.peer, {});
  }
  return Verdict::kContinue;
}

// -- time ---------------------------------------------------------------------------------------------------------

void Session::on_time(Nanos now, std::string& out) {
  if (!welcome_) return;
  if (now >= again_at_) {
    again_at_ = kNever;
    announce_all(true, out);
  }
  if (measured_.empty() || now < measured_at_ + kMeasureEvery) return;
  measured_at_ = now;
  std::vector<Measured> flows;
  while (!measured_.empty() && flows.size() < kMaxMeasured)
    flows.push_back(measured_.extract(measured_.begin()).mapped());
  out += encode(flows);
}

Nanos Session::deadline() const {
  if (!welcome_) return kNever;
  return measured_.empty() ? again_at_ : std::min(again_at_, measured_at_ + kMeasureEvery);
}

std::shared_ptr<const Assignments> Session::take_changes() {
  if (!std::exchange(changed_, false)) return nullptr;
  return std::make_shared<const Assignments>(now_);
}

}  // namespace paralet::path_client
