// SPDX-License-Identifier: Apache-2.0
// Ring all-reduce: reduce-scatter, then all-gather. As in NCCL, a rank adds an arriving message and its own input
// straight into the slot of the next send, so each message is read and written once per rank.
#include "all_reduce.hpp"
#include "floats.hpp"

namespace paralet::driver {
namespace {

class Ring {
 public:
  Ring(Links& links, unsigned rank, const Extent& extent, const Job& job)
      : ranks_(extent.ranks),
        steps_(2 * (extent.ranks - 1)),
        from_((rank + extent.ranks - 1) % extent.ranks),
        left_(*links.incoming.at({from_, 0})),
        right_(*links.outgoing.at({(rank + 1) % extent.ranks, 0})),
        sends_(ring_sends(rank, extent)),
        receives_(ring_sends(from_, extent)),
        job_(job),
        done_before_(right_.done()) {
    timings_.step_finished.resize(ring_rounds(extent) * steps_);
    left_.expect(receives_.size() * job_.iterations);
  }

  [[nodiscard]] bool finished() const { return taken_ == receives_.size() * job_.iterations && right_.idle(); }

  bool progress() {
    bool progressed = left_.progress();
    progressed |= right_.progress();
    for (; completed_ < right_.done() - done_before_; ++completed_) finish(sends_[completed_ % sends_.size()].step);
    if (send_own() || reduce_next()) progressed = true;  // one message, so that additions do not hold the network up
    return progressed;
  }

  [[nodiscard]] std::string awaited() const {
    if (taken_ == receives_.size() * job_.iterations) return "its own sends to finish";
    const std::uint64_t next = taken_ % receives_.size();
    return "message " + std::to_string(next) + ", in step " + std::to_string(receives_[next].step) + ", from rank " +
           std::to_string(from_);
  }

  Timings timings() && { return std::move(timings_); }

 private:
  /// Whether the next message to send is of this rank's own chunk, which starts a round.
  [[nodiscard]] bool own_is_next() const {
    return sent_ < sends_.size() * job_.iterations && sends_[sent_ % sends_.size()].step % steps_ == 0;
  }

  bool send_own() {
    const std::span<std::byte> slot = right_.free_slot();
    if (!own_is_next() || slot.empty()) return false;
    const Range range = sends_[sent_ % sends_.size()].range;
    copy(at(input(sent_ / sends_.size()), range), floats(slot, range.count));
    forward(range);
    return true;
  }

  /// Reduces or copies the oldest message, if it has arrived and there is a free slot to forward it.
  bool reduce_next() {
    const auto front = left_.front();
    if (!front) return false;
    const Slice& slice = receives_[taken_ % receives_.size()];
    const Range range = slice.range;
    const unsigned step = slice.step % steps_;
    const bool forwards = step + 1 < steps_;
    const std::span<std::byte> slot = right_.free_slot();
    if (forwards && (own_is_next() || slot.empty())) return false;
    if (front->size() != range.count * sizeof(float))
      throw NetError("a message has " + std::to_string(front->size()) + " bytes instead of " +
                     std::to_string(range.count * sizeof(float)));

    const std::span<const float> arrived = floats(*front);
    const std::span<const float> own = at(input(taken_ / receives_.size()), range);
    const std::span<float> out = at(job_.output, range);
    const std::span<float> next = forwards ? floats(slot, range.count) : std::span<float>{};
    if (step + 2 < ranks_) {  // reduce-scatter
      add(arrived, own, next);
    } else if (step + 2 == ranks_) {  // last step of the reduce-scatter: the sum is complete
      add(arrived, own, out, next);
    } else {  // all-gather
      copy(arrived, out);
      if (forwards) copy(arrived, next);
    }
    if (forwards) forward(range);
    left_.release();
    ++taken_;
    finish(slice.step);
    timings_.last_arrival[from_] = timings_.step_finished[slice.step];
    return true;
  }

  void forward(Range range) {
    right_.send(range.count * sizeof(float));
    ++sent_;
  }

  void finish(unsigned step) { timings_.step_finished[step] = now(); }

  [[nodiscard]] std::span<const float> input(std::uint64_t iteration) const {
    return job_.inputs[iteration % job_.inputs.size()];
  }

  unsigned ranks_;
  unsigned steps_;  ///< per round
  unsigned from_;
  ReceiveLink& left_;
  SendLink& right_;
  std::vector<Slice> sends_;
  std::vector<Slice> receives_;
  const Job& job_;
  std::uint64_t done_before_;
  // Message counts over all iterations.
  std::uint64_t sent_ = 0;
  std::uint64_t completed_ = 0;
  std::uint64_t taken_ = 0;
  Timings timings_;
};

}  // namespace

Timings ring_all_reduce(Links& links, unsigned rank, const Extent& extent, const Job& job, PollDeadline deadline) {
  Ring ring(links, rank, extent, job);
  while (!ring.finished()) deadline.poll(ring.progress(), [&] { return ring.awaited(); });
  return std::move(ring).timings();
}

}  // namespace paralet::driver
