// SPDX-License-Identifier: Apache-2.0
#include "elephants.hpp"

#include <algorithm>
#include <array>
#include <charconv>

namespace paralet::renewals {
void append(std::string& out, std::uint64_t number) {
  std::array<char, 20> digits;  // NOLINT(cppcoreguidelines-pro-type-member-init): written before it is read
  out.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr);
}

void Pair::write_answer(std::string& out, std::uint64_t generation, std::int64_t id) const {
  ((out += R"({"type":"assign","peer":")") += peer) += R"(","ports":)";
  (out += promise->ports) += R"(,"generation":)";
  append(out, generation);
  ((out += R"(,"rate_bps":)") += promise->rate_bps) += R"(,"id":)";
  append(out, static_cast<std::uint64_t>(id));
  if (peer_port != kRocePort) {
    out += R"(,"peer_port":)";
    append(out, peer_port);
  }
  out += "}\n";
}

void Pair::write_counted(std::string& out, std::uint64_t generation, std::int64_t id) const {
  (((out += "[\"") += peer) += "\",") += promise->ports;
  append(out += ',', generation);
  (out += ',') += promise->rate_bps;
  append(out += ',', static_cast<std::uint64_t>(id));
  append(out += ',', peer_port);
  out += ",false,[]]";
}

const Elephants::Open* Elephants::find(std::int64_t id) const {
  const auto found = open_.find(id);
  return found == open_.end() ? nullptr : &found->second;
}

Pair* Elephants::put(std::int64_t id, Pair& pair, std::int64_t bytes) {
  const auto [found, is_new] = open_.try_emplace(id, Open{nullptr, 0, opened_});
  opened_ += is_new ? 1 : 0;
  found->second.bytes = bytes;
  return std::exchange(found->second.pair, &pair);
}

std::optional<Elephants::Open> Elephants::take(std::int64_t id) {
  const auto node = open_.extract(id);
  if (node.empty()) return std::nullopt;
  return node.mapped();
}

std::vector<std::pair<std::int64_t, Elephants::Open>> Elephants::in_order() const {
  std::vector<std::pair<std::int64_t, Open>> all(open_.begin(), open_.end());
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.second.order < b.second.order; });
  return all;
}

std::optional<std::int64_t> Elephants::newest(const Pair& pair) const {
  std::optional<std::int64_t> id;
  std::uint64_t order = 0;
  for (const auto& [each, open] : open_) {
    if (open.pair != &pair || (id && open.order < order)) continue;
    id = each;
    order = open.order;
  }
  return id;
}

Pair* Elephants::renew(const Release& released, const Announce& announced, double now_s) {
  const auto found = open_.find(released.id);
  if (found == open_.end() || open_.contains(announced.id)) return nullptr;
  Pair& pair = *found->second.pair;
  if (!pair.promise || pair.peer != announced.peer || pair.peer_port != announced.peer_port) return nullptr;
  auto node = open_.extract(found);
  node.key() = announced.id;
  node.mapped().bytes = announced.bytes;
  node.mapped().order = opened_++;
  open_.insert(std::move(node));
  pair.newest_id = announced.id;
  if (pair.job != announced.job) pair.job = announced.job;
  if (pair.elephants == 1) {
    pair.since_s = now_s;
    pair.measured_bps.reset();
  }
  ++generation;
  return &pair;
}

}  // namespace paralet::renewals
