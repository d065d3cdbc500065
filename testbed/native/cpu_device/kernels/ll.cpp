// SPDX-License-Identifier: Apache-2.0
// Protocol LL: one step per chunk, in lines whose flags say what is ready.
#include <algorithm>

#include "combine.hpp"
#include "ll_lines.hpp"
#include "not_supported.hpp"
#include "transfer.hpp"

namespace paralet::cpu_device {
namespace {

struct ReceiveLane {
  Connection connection;
  std::uint64_t step;
  std::size_t ready_lines;  // of the current chunk
  std::vector<std::byte> data;
};

struct SendLane {
  Connection connection;
  std::uint64_t step;
  std::uint64_t head;  // when last read
};

class LlTransfer final : public Transfer {
 public:
  LlTransfer(const Peers& peers, std::size_t slot_bytes, const Reducer& reducer)
      : slot_bytes_(slot_bytes), reducer_(reducer), outgoing_(slot_bytes / 2) {
    for (const Connection& connection : peers.receive) {
      receive_.push_back({connection, connection.step(), 0, std::vector<std::byte>(slot_bytes / 2)});
    }
    for (const Connection& connection : peers.send) {
      send_.push_back({connection, connection.step(), connection.has_head() ? connection.head() : 0});
    }
  }

  void begin(const Operation& operation) override {
    operation_ = operation;
    bytes_ = operation.count * reducer_.element_bytes();
    if (bytes_ > slot_bytes_ / 2) throw NotSupported{"A chunk of protocol LL is longer than the connection's slots."};
    for (ReceiveLane& lane : receive_) lane.ready_lines = 0;
  }

  Progress advance() override {
    if (!ready()) return Progress::blocked;
    std::vector<const std::byte*> received;
    if (operation_.receive) {
      for (ReceiveLane& lane : receive_) {
        ll::read(slot(lane.connection, lane.step), lane.data.data(), bytes_);
        received.push_back(lane.data.data());
      }
    }
    std::vector<std::byte*> results;
    if (operation_.target != nullptr) results.push_back(operation_.target);
    if (operation_.send) results.push_back(outgoing_.data());
    combine(reducer_, operation_.source, received, results, operation_.count, operation_.post);
    if (operation_.receive) {
      for (ReceiveLane& lane : receive_) lane.connection.post_head(++lane.step);
    }
    if (operation_.send) {
      for (SendLane& lane : send_) send(lane);
    }
    return Progress::finished;
  }

  void close() override {
    for (const ReceiveLane& lane : receive_) lane.connection.save_step(lane.step);
    for (const SendLane& lane : send_) lane.connection.save_step(lane.step);
  }

 private:
  std::byte* slot(const Connection& connection, std::uint64_t step) const {
    return connection.buffer(ll_buffer) + (step % slots) * slot_bytes_;
  }

  bool ready() {
    if (operation_.send) {
      for (SendLane& lane : send_) {
        const std::uint64_t needed = lane.step + 1;
        if (lane.connection.has_head() && lane.head + slots < needed &&
            (lane.head = lane.connection.head()) + slots < needed) {
          return false;
        }
      }
    }
    if (operation_.receive) {
      const std::size_t lines = ll::lines_for(bytes_);
      for (ReceiveLane& lane : receive_) {
        lane.ready_lines =
            ll::count_ready(slot(lane.connection, lane.step), lane.ready_lines, lines, ll::flag_of(lane.step));
        if (lane.ready_lines < lines) return false;
      }
    }
    return true;
  }

  void send(SendLane& lane) const {
    std::byte* to = slot(lane.connection, lane.step);
    const std::uint32_t flag = ll::flag_of(lane.step);
    ll::write(to, outgoing_.data(), bytes_, flag);
    std::size_t written = ll::lines_for(bytes_) * ll::line_bytes;
    if (ll::is_cleaning_step(lane.step)) {
      const std::vector<std::byte> zeros((slot_bytes_ - written) / 2);
      ll::write(to + written, zeros.data(), zeros.size(), flag);
      written = slot_bytes_;
    }
    lane.connection.post_bytes(lane.step, written);
    ++lane.step;
  }

  const std::size_t slot_bytes_;
  const Reducer& reducer_;
  std::vector<std::byte> outgoing_;
  std::vector<ReceiveLane> receive_;
  std::vector<SendLane> send_;
  Operation operation_;
  std::size_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<Transfer> ll_transfer(const Peers& peers, std::size_t slot_bytes, const Reducer& reducer) {
  return std::make_unique<LlTransfer>(peers, slot_bytes, reducer);
}

}  // namespace paralet::cpu_device
