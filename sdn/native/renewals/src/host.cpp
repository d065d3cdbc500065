// SPDX-License-Identifier: Apache-2.0
#include "host.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace paralet::renewals {
namespace {

constexpr double kFew = 2;  // lines that are allowed together: those of a renewal

}  // namespace

bool Host::allow(std::size_t lines, double now_s) {
  const double full_s_now = std::max(full_s, now_s);
  if (limits_.burst_lines - (full_s_now - now_s) * limits_.lines_per_s < kFew) return false;
  full_s = full_s_now + static_cast<double>(lines) / limits_.lines_per_s;
  heard_s = now_s;
  return true;
}

std::optional<HostLine> Host::read(std::string_view line) const {
  if (line.size() > limits_.line_bytes) return std::nullopt;  // the caller refuses it
  return read_line(line);
}

std::size_t Host::answer(std::uint64_t number, std::string_view data, double now_s, std::string& out, Done& done) {
  std::size_t answered = 0;
  if (is_clear && elephants) {
    const auto begin = std::chrono::steady_clock::now();
    const std::uint64_t answers = done.answers;
    const std::uint64_t renewed = done.renewed;
    for (std::size_t end; (end = data.find('\n', answered)) != std::string_view::npos;) {
      const std::size_t more = answer_first(number, data.substr(answered), end - answered, now_s, out, done);
      if (more == 0) break;
      answered += more;
    }
    if (done.renewed > renewed) {
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      done.renewals.push_back({took.count(), done.renewed - renewed});
    }
    if (done.is_logged && done.answers > answers) {
      std::string lines(data.substr(0, answered - 1));
      std::replace(lines.begin(), lines.end(), '\n', ',');
      done.said.push_back({number, std::move(lines)});
    }
  }
  if (answered < data.size()) is_clear = false;
  return answered;
}

std::size_t Host::answer_first(std::uint64_t number, std::string_view data, std::size_t end, double now_s,
                               std::string& out, Done& done) {
  const auto first = read(data.substr(0, end));
  if (!first) return 0;
  if (const auto* ping = std::get_if<Ping>(&*first)) {
    if (!allow(1, now_s)) return 0;
    const auto nonce = static_cast<std::uint64_t>(ping->nonce);
    append(out += R"({"type":"pong","nonce":)", nonce);
    out += "}\n";
    if (done.is_logged) {
      append(done.counted += '[', number);
      append(done.counted += ",[", nonce);
      done.counted += "]]";
    }
    ++done.answers;
    return end + 1;
  }
  const auto* released = std::get_if<Release>(&*first);
  const std::size_t last = data.find('\n', end + 1);
  if (released == nullptr || last == std::string_view::npos) return 0;
  const auto second = read(data.substr(end + 1, last - end - 1));
  const auto* announced = second ? std::get_if<Announce>(&*second) : nullptr;
  if (announced == nullptr) return 0;
  const double full_s_before = full_s;
  if (!allow(2, now_s)) return 0;
  const Pair* pair = elephants->renew(*released, *announced, now_s);
  if (pair == nullptr) {
    full_s = full_s_before;  // the caller lets them count
    return 0;
  }
  pair->write_answer(out, elephants->generation, announced->id);
  if (done.is_logged) {
    append(done.counted += '[', number);
    pair->write_counted(done.counted += ',', elephants->generation, announced->id);
    done.counted += ']';
  }
  ++done.renewed;
  ++done.answers;
  return last + 1;
}

}  // namespace paralet::renewals
