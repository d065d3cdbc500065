// SPDX-License-Identifier: Apache-2.0
// Reduce-scatter, then all-gather, around a ring. As in NCCL a rank sums what arrives with its own input straight into
// the slot from which it goes on, so a message is touched once per rank.
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
    bool moved = left_.progress();
    moved |= right_.progress();
    for (; reaped_ < right_.done() - done_before_; ++reaped_) finish(sends_[reaped_ % sends_.size()].step);
    if (send_own() || take_in()) moved = true;  // one at a time: the network does not wait for sums
    return moved;
  }

  [[nodiscard]] std::string awaited() const {
    if (taken_ == receives_.size() * job_.iterations) return "its last messages to be done";
    const std::uint64_t next = taken_ % receives_.size();
    return "message " + std::to_string(next) + ", in step " + std::to_string(receives_[next].step) + ", from rank " +
           std::to_string(from_);
  }

  Timings timings() && { return std::move(timings_); }

 private:
  /// The next message is of this rank's own chunk: what starts a round.
  [[nodiscard]] bool own_is_next() const {
    return sent_ < sends_.size() * job_.iterations && sends_[sent_ % sends_.size()].step % steps_ == 0;
  }

  bool send_own() {
    const std::span<std::byte> slot = right_.free_slot();
    if (!own_is_next() || slot.empty()) return false;
    const Range range = sends_[sent_ % sends_.size()].range;
    copy(at(input(sent_ / sends_.size()), range), floats(slot, range.count));
    pass_on(range);
    return true;
  }

  /// Takes in the oldest message, if it has come and what is to be passed on has somewhere to go.
  bool take_in() {
    const auto front = left_.front();
    if (!front) return false;
    const Slice& slice = receives_[taken_ % receives_.size()];
    const Range range = slice.range;
    const unsigned step = slice.step % steps_;
    const bool passes_on = step + 1 < steps_;
    const std::span<std::byte> slot = right_.free_slot();
    if (passes_on && (own_is_next() || slot.empty())) return false;
    if (front->size() != range.count * sizeof(float)) throw NetError("a message has not the length that was due");

    const std::span<const float> arrived = floats(*front);
    const std::span<const float> own = at(input(taken_ / receives_.size()), range);
    const std::span<float> out = at(job_.output, range);
    const std::span<float> next = passes_on ? floats(slot, range.count) : std::span<float>{};
    if (step + 2 < ranks_) {  // reduce-scatter
      add(arrived, own, next);
    } else if (step + 2 == ranks_) {  // its end: the sum is complete
      add(arrived, own, out, next);
    } else {  // all-gather
      copy(arrived, out);
      if (passes_on) copy(arrived, next);
    }
    if (passes_on) pass_on(range);
    left_.release();
    ++taken_;
    finish(slice.step);
    timings_.last_arrival[from_] = timings_.step_finished[slice.step];
    return true;
  }

  void pass_on(Range range) {
    right_.send(range.count * sizeof(float));
    ++sent_;
  }

  void finish(unsigned step) { timings_.step_finished[step] = now(); }

  [[nodiscard]] std::span<const float> input(std::uint64_t iteration) const {
    return job_.inputs[iteration % job_.inputs.size()];
  }

  unsigned ranks_;
  unsigned steps_;  ///< of a round
  unsigned from_;
  ReceiveLink& left_;
  SendLink& right_;
  std::vector<Slice> sends_;
  std::vector<Slice> receives_;
  const Job& job_;
  std::uint64_t done_before_;
  // Over all iterations.
  std::uint64_t sent_ = 0;
  std::uint64_t reaped_ = 0;
  std::uint64_t taken_ = 0;
  Timings timings_;
};

}  // namespace

Timings ring_all_reduce(Links& links, unsigned rank, const Extent& extent, const Job& job, Patience patience) {
  Ring ring(links, rank, extent, job);
  while (!ring.finished()) patience.after(ring.progress(), [&] { return ring.awaited(); });
  return std::move(ring).timings();
}

}  // namespace paralet::driver
