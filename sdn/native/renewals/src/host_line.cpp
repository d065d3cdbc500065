// SPDX-License-Identifier: Apache-2.0
#include "host_line.hpp"

#include <charconv>
#include <limits>
#include <system_error>
#include <utility>

namespace paralet::renewals {
namespace {

constexpr std::size_t kMostPeer = 39, kMostJob = 64;  // characters
constexpr double kMostPeriod = 1e6;                   // seconds

/// Reads JSON from left to right. What fails leaves it anywhere: the line is then given up.
class Reader {
 public:
  explicit Reader(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  /// Whether this character comes next, after spaces. Then it is read.
  bool take(char wanted) {
    skip_spaces();
    if (at_ == end_ || *at_ != wanted) return false;
    ++at_;
    return true;
  }

  bool at_end() {
    skip_spaces();
    return at_ == end_;
  }

  /// A text without escapes, in printable ASCII.
  std::optional<std::string_view> text() {
    if (!take('"')) return std::nullopt;
    const char* begin = at_;
    for (; at_ != end_; ++at_) {
      if (*at_ == '"') return std::string_view(begin, static_cast<std::size_t>(at_++ - begin));
      if (*at_ == '\\' || *at_ < 0x20 || *at_ > 0x7e) return std::nullopt;
    }
    return std::nullopt;
  }

  /// A number that is written without sign, fraction and exponent.
  std::optional<std::int64_t> whole(std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
    skip_spaces();
    const char* begin = at_;
    std::int64_t value = 0;
    if (at_ == end_ || !is_digit(*at_)) return std::nullopt;
    const auto [after, error] = std::from_chars(at_, end_, value);
    at_ = after;
    if (error != std::errc() || (*begin == '0' && after - begin > 1) || value > most) return std::nullopt;
    return value;  // what follows, such as a fraction, is neither a comma nor a brace
  }

  /// Any number of JSON's that is not negative.
  std::optional<double> number() {
    skip_spaces();
    const char* begin = at_;
    if (!digits() || (*begin == '0' && at_ - begin > 1)) return std::nullopt;
    if (at_ != end_ && *at_ == '.' && (++at_, !digits())) return std::nullopt;
    if (at_ != end_ && (*at_ == 'e' || *at_ == 'E')) {
      ++at_;
      if (at_ != end_ && (*at_ == '+' || *at_ == '-')) ++at_;
      if (!digits()) return std::nullopt;
    }
    double value = 0;
    if (std::from_chars(begin, at_, value).ec != std::errc()) return std::nullopt;
    return value;
  }

  bool null() {
    skip_spaces();
    if (!std::string_view(at_, static_cast<std::size_t>(end_ - at_)).starts_with("null")) return false;
    at_ += 4;
    return true;
  }

 private:
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  bool digits() {
    const char* begin = at_;
    while (at_ != end_ && is_digit(*at_)) ++at_;
    return at_ != begin;
  }

  void skip_spaces() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }

  const char* at_;
  const char* end_;
};

/// All keys of the three messages.
struct Fields {
  std::optional<std::string_view> type, peer, job;
  std::optional<std::int64_t> id, bytes, nonce, peer_port;
  bool has_period = false, has_port = false;

  /// Whether `key` is one of them, comes for the first time, and has a value that it may have.
  bool take(std::string_view key, Reader& reader) {
    if (key == "type") return once(type, reader.text());
    if (key == "id") return once(id, reader.whole());
    if (key == "peer") return once(peer, reader.text()) && peer->size() <= kMostPeer;
    if (key == "bytes") return once(bytes, reader.whole());
    if (key == "job") return once(job, reader.text()) && job->size() <= kMostJob;
    if (key == "peer_port") return once(peer_port, reader.whole(0xFFFF)) && *peer_port > 0;
    if (key == "nonce") return once(nonce, reader.whole());
    if (key == "port") return !std::exchange(has_port, true) && reader.null();
    if (key == "repeat_s") return !std::exchange(has_period, true) && (reader.null() || is_period(reader.number()));
    return false;
  }

 private:
  template <typename Value>
  static bool once(std::optional<Value>& field, std::optional<Value> value) {
    if (field || !value) return false;
    field = value;
    return true;
  }

  static bool is_period(std::optional<double> seconds) { return seconds && *seconds > 0 && *seconds <= kMostPeriod; }
};

}  // namespace

std::optional<HostLine> read_line(std::string_view line) {
  Reader reader(line);
  Fields said;
  if (!reader.take('{')) return std::nullopt;
  do {
    const auto key = reader.text();
    if (!key || !reader.take(':') || !said.take(*key, reader)) return std::nullopt;
  } while (reader.take(','));
  if (!reader.take('}') || !reader.at_end() || !said.type) return std::nullopt;
  const bool is_of_elephant = said.peer || said.bytes || said.job || said.peer_port || said.has_period || said.has_port;
  if (*said.type == "announce" && said.id && said.peer && said.bytes && !said.nonce) {
    const auto port = static_cast<std::uint16_t>(said.peer_port.value_or(kRocePort));
    return Announce{*said.id, *said.peer, *said.bytes, said.job.value_or(""), port};
  }
  if (is_of_elephant) return std::nullopt;
  if (*said.type == "release" && said.id && !said.nonce) return Release{*said.id};
  if (*said.type == "ping" && !said.id) return Ping{said.nonce.value_or(0)};
  return std::nullopt;
}

}  // namespace paralet::renewals
