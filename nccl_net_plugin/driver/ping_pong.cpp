// SPDX-License-Identifier: Apache-2.0
#include "ping_pong.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace paralet::driver {
namespace {

constexpr const char* kSends = "its last messages to be done";

class Player {
 public:
  Player(Links& links, unsigned rank, std::size_t bytes, unsigned rounds, Patience& patience)
      : in_(*links.incoming.at({1 - rank, 0})),
        out_(*links.outgoing.at({1 - rank, 0})),
        bytes_(bytes),
        patience_(patience) {
    in_.expect(rounds);
    in_.progress();
  }

  /// A message of which every byte tells the round.
  void hit(unsigned round) {
    while (out_.free_slot().empty()) patience_.after(out_.progress(), [] { return kSends; });
    std::memset(out_.free_slot().data(), static_cast<int>(round & 0xFF), bytes_);
    out_.send(bytes_);
  }
  /// How many bytes of the next message are wrong.
  std::uint64_t await(unsigned round) {
    while (!in_.front()) {
      patience_.after(in_.progress(), [&] { return "message " + std::to_string(round); });
    }
    const std::span<const std::byte> ball = *in_.front();
    const auto right = std::count(ball.begin(), ball.end(), static_cast<std::byte>(round & 0xFF));
    in_.release();
    return std::max(bytes_, ball.size()) - static_cast<std::size_t>(right);
  }
  /// Outside of what is measured.
  void tidy() {
    out_.progress();
    in_.progress();
  }
  void finish() {
    while (!out_.idle()) patience_.after(out_.progress(), [] { return kSends; });
  }

 private:
  ReceiveLink& in_;
  SendLink& out_;
  std::size_t bytes_;
  Patience& patience_;
};

}  // namespace

PingPong ping_pong(Links& links, unsigned rank, std::size_t bytes, unsigned round_trips, Patience patience) {
  const unsigned unmeasured = round_trips / 8;
  const unsigned rounds = unmeasured + round_trips;
  Player player(links, rank, bytes, rounds, patience);
  PingPong result;
  std::vector<Nanos> times;
  for (unsigned round = 0; round < rounds; ++round) {
    const Nanos begin = now();
    if (rank == 0) player.hit(round);
    result.wrong_bytes += player.await(round);
    if (rank == 1) player.hit(round);
    if (rank == 0 && round >= unmeasured) times.push_back(now() - begin);
    player.tidy();
  }
  player.finish();
  if (rank == 0) {
    std::nth_element(times.begin(), times.begin() + round_trips / 2, times.end());
    result.half_round_trip = times[round_trips / 2] / 2;
  }
  return result;
}

}  // namespace paralet::driver
