// SPDX-License-Identifier: Apache-2.0
// Fuzzes what the path service reads natively from hosts: lines that claim to be releases, announcements and pings.
// Whatever they say, every line that counts as read has an answer of its own, no elephant is lost or gained, and the
// same bytes are answered alike in one piece and line by line.
#include <algorithm>
#include <array>
#include <memory>
#include <string>

#include "host.hpp"
#include "script.hpp"

namespace paralet::fuzz {
namespace {

using renewals::Done;
using renewals::Elephants;
using renewals::Host;
using renewals::Pair;

constexpr std::int64_t kOpen = 4;

/// A client with two elephants to each of two peers, and its connection.
struct Client {
  std::array<Pair, 2> pairs;
  std::shared_ptr<Elephants> elephants = std::make_shared<Elephants>();
  Host host{{1e9, 1e9, 1 << 16}, 0};
  std::string out;
  Done done;

  Client() {
    pairs[0].peer = "10.0.0.2";
    pairs[1].peer = "fd00::2";
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      pairs[i].peer_port = i == 0 ? renewals::kRocePort : 5000;
      pairs[i].elephants = kOpen / 2;
      pairs[i].promise = {"[49152]", "null"};
    }
    for (std::int64_t id = 0; id < kOpen; ++id) elephants->put(id, pairs[static_cast<std::size_t>(id % 2)], 1);
    host.elephants = elephants;
    done.is_logged = true;
  }

  std::size_t say(const std::string& data) {
    host.is_clear = true;
    return host.answer(7, data, 1, out, done);
  }
};

void check(const Client& client) {
  require(client.elephants->size() == kOpen && client.elephants->generation == client.done.renewed);
  for (const Pair& pair : client.pairs)
    require(std::ranges::count_if(client.elephants->all(),
                                  [&](const auto& each) { return each.second.pair == &pair; }) == kOpen / 2);
  require(static_cast<std::uint64_t>(std::count(client.out.begin(), client.out.end(), '\n')) == client.done.answers);
  require(client.done.answers >= client.done.renewed);
}

void try_lines(const std::string& data) {
  Client whole;
  const std::size_t answered = whole.say(data);
  check(whole);
  require(answered <= data.size() && (answered == 0) == (whole.done.answers == 0));
  require(answered == 0 || data[answered - 1] == '\n');
  require(whole.host.is_clear == (answered == data.size()));
  require(whole.done.said.size() == (answered == 0 ? 0 : 1));

  Client piecewise;  // in the least pieces that are answered, each a copy of exactly its size
  std::size_t begin = 0;
  for (std::size_t end = 0; end < answered; ++end) {
    if (data[end] != '\n') continue;
    const std::string piece(data, begin, end + 1 - begin);
    if (piecewise.say(piece) == piece.size()) begin = end + 1;
  }
  check(piecewise);
  require(begin == answered && piecewise.out == whole.out && piecewise.done.counted == whole.done.counted);
}

}  // namespace
}  // namespace paralet::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  paralet::fuzz::try_lines(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
