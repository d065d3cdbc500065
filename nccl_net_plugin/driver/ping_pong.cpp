// SPDX-License-Identifier: Apache-2.0
#include "ping_pong.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace paralet::driver {
namespace {

constexpr const char* kSends = "its own sends to finish";

class Endpoint {
 public:
  Endpoint(Links& links, unsigned rank, std::size_t bytes, unsigned rounds, PollDeadline& deadline)
      : in_(*links.incoming.at({1 - rank, 0})),
        out_(*links.outgoing.at({1 - rank, 0})),
        bytes_(bytes),
        deadline_(deadline) {
    in_.expect(rounds);
    in_.progress();
  }

  /// Sends a message whose bytes all hold the round's number modulo 256.
  void send(unsigned round) {
    while (out_.free_slot().empty()) deadline_.poll(out_.progress(), [] { return kSends; });
    std::memset(out_.free_slot().data(), static_cast<int>(round & 0xFF), bytes_);
    out_.send(bytes_);
  }
  /// Waits for the next message and counts its wrong bytes.
  std::uint64_t receive(unsigned round) {
    while (!in_.front()) {
      deadline_.poll(in_.progress(), [&] { return "message " + std::to_string(round); });
    }
    const std::span<const std::byte> message = *in_.front();
    const auto right = std::count(message.begin(), message.end(), static_cast<std::byte>(round & 0xFF));
    in_.release();
    return std::max(bytes_, message.size()) - static_cast<std::size_t>(right);
  }
  /// Collects finished sends and posts receives, outside the measured time.
  void progress() {
    out_.progress();
    in_.progress();
  }
  void finish() {
    while (!out_.idle()) deadline_.poll(out_.progress(), [] { return kSends; });
  }

 private:
  ReceiveLink& in_;
  SendLink& out_;
  std::size_t bytes_;
  PollDeadline& deadline_;
};

}  // namespace

PingPong ping_pong(Links& links, unsigned rank, std::size_t bytes, unsigned round_trips, PollDeadline deadline) {
  const unsigned warm_up = round_trips / 8;
  const unsigned rounds = warm_up + round_trips;
  Endpoint endpoint(links, rank, bytes, rounds, deadline);
  PingPong result;
  std::vector<Nanos> times;
  for (unsigned round = 0; round < rounds; ++round) {
    const Nanos begin = now();
    if (rank == 0) endpoint.send(round);
    result.wrong_bytes += endpoint.receive(round);
    if (rank == 1) endpoint.send(round);
    if (rank == 0 && round >= warm_up) times.push_back(now() - begin);
    endpoint.progress();
  }
  endpoint.finish();
  if (rank == 0) {
    std::nth_element(times.begin(), times.begin() + round_trips / 2, times.end());
    result.half_round_trip = times[round_trips / 2] / 2;
  }
  return result;
}

}  // namespace paralet::driver
