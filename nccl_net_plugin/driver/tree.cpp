// SPDX-License-Identifier: Apache-2.0
// Double binary tree all-reduce: two trees at once with half of the elements each. Sums flow up to the root slice by
// slice, and totals flow down behind them.
#include "all_reduce.hpp"
#include "floats.hpp"

namespace paralet::driver {
namespace {

class Tree {
 public:
  Tree(Links& links, unsigned channel, TreePlace place, const Extent& extent, const Job& job, Timings& timings)
      : place_(std::move(place)),
        slices_(tree_slices(extent).at(channel)),
        job_(job),
        messages_(slices_.size() * job.iterations),
        step_up_(step_up(place_)),
        step_down_(step_down(place_, extent.ranks)),
        timings_(timings) {
    const auto neighbour = [&](unsigned peer) {
      const Edge edge{peer, channel};
      const TreePlace its = double_binary_tree(peer, extent.ranks).at(channel);
      return Neighbour{peer, step_up(its), links.incoming.at(edge).get(), links.outgoing.at(edge).get()};
    };
    if (place_.parent) parent_ = neighbour(*place_.parent);
    for (const unsigned child : place_.children) children_.push_back(neighbour(child));
    neighbours_ = children_;
    if (parent_) neighbours_.push_back(*parent_);
    for (const Neighbour& n : neighbours_) n.from->expect(messages_);
  }

  [[nodiscard]] bool finished() const {
    return up_ == messages_ && (down_ == messages_ || !parent_) &&
           std::all_of(neighbours_.begin(), neighbours_.end(), [](const Neighbour& n) { return n.to->idle(); });
  }

  [[nodiscard]] std::string awaited() const {
    const std::string which = "of " + std::to_string(slices_.size()) + " messages";
    for (const Neighbour& child : children_) {
      if (up_ < messages_ && !child.from->front()) {
        return "sum " + std::to_string(up_ % slices_.size()) + " " + which + " from rank " + std::to_string(child.rank);
      }
    }
    if (parent_ && down_ < messages_) {
      return "total " + std::to_string(down_ % slices_.size()) + " " + which + " from rank " +
             std::to_string(parent_->rank);
    }
    return "its own sends to finish";
  }

  bool progress() {
    bool progressed = false;
    for (const Neighbour& n : neighbours_) {
      progressed |= n.from->progress();
      progressed |= n.to->progress();
    }
    while (sum_up() || hand_down()) progressed = true;
    return progressed;
  }

 private:
  struct Neighbour {
    unsigned rank;
    unsigned step_up;  ///< step at which it sends to its parent
    ReceiveLink* from;
    SendLink* to;
  };

  [[nodiscard]] bool children_have_room() const {
    return std::none_of(children_.begin(), children_.end(),
                        [](const Neighbour& c) { return c.to->free_slot().empty(); });
  }

  /// Adds this rank's input and the children's sums of the next slice.
  bool sum_up() {
    if (up_ == messages_) return false;
    for (const Neighbour& child : children_) {
      if (!child.from->front()) return false;
    }
    if (parent_ ? parent_->to->free_slot().empty() : !children_have_room()) return false;
    const Range range = slices_[up_ % slices_.size()];
    const std::span<float> sum = parent_ ? floats(parent_->to->free_slot(), range.count) : at(job_.output, range);
    const std::span<const float> own = at(job_.inputs[up_ / slices_.size() % job_.inputs.size()], range);
    if (children_.empty()) copy(own, sum);
    for (const Neighbour& child : children_) {
      const std::span<const float> arrived = checked(*child.from->front(), range);
      if (&child == &children_.front()) {
        add(arrived, own, sum);
      } else {
        add(arrived, sum);
      }
      child.from->release();
      timings_.last_arrival[child.rank] = finish(child.step_up);
    }
    if (parent_) {
      parent_->to->send(range.count * sizeof(float));
      finish(step_up_);
    } else {
      send_down(sum);
    }
    ++up_;
    return true;
  }

  /// Copies the next total from the parent to the output and to the children.
  bool hand_down() {
    if (!parent_ || down_ == messages_ || !parent_->from->front() || !children_have_room()) return false;
    const Range range = slices_[down_ % slices_.size()];
    const std::span<const float> total = checked(*parent_->from->front(), range);
    copy(total, at(job_.output, range));
    send_down(total);
    parent_->from->release();
    timings_.last_arrival[parent_->rank] = finish(step_down_ - 1);
    ++down_;
    return true;
  }

  void send_down(std::span<const float> total) {
    for (const Neighbour& child : children_) {
      copy(total, floats(child.to->free_slot(), total.size()));
      child.to->send(total.size_bytes());
      finish(step_down_);
    }
  }

  static std::span<const float> checked(std::span<const std::byte> message, Range range) {
    if (message.size() != range.count * sizeof(float))
      throw NetError("a message has " + std::to_string(message.size()) + " bytes instead of " +
                     std::to_string(range.count * sizeof(float)));
    return floats(message);
  }

  Nanos finish(unsigned step) { return timings_.step_finished[step] = now(); }

  TreePlace place_;
  std::vector<Range> slices_;
  const Job& job_;
  std::uint64_t messages_;
  unsigned step_up_;
  unsigned step_down_;
  Timings& timings_;
  std::optional<Neighbour> parent_;
  std::vector<Neighbour> children_;
  std::vector<Neighbour> neighbours_;  ///< children and parent
  // Slices over all iterations.
  std::uint64_t up_ = 0;
  std::uint64_t down_ = 0;
};

}  // namespace

Timings tree_all_reduce(Links& links, unsigned rank, const Extent& extent, const Job& job, PollDeadline deadline) {
  Timings timings;
  timings.step_finished.resize(tree_steps(extent.ranks));
  const auto places = double_binary_tree(rank, extent.ranks);
  Tree first(links, 0, places[0], extent, job, timings);
  Tree second(links, 1, places[1], extent, job, timings);
  while (!first.finished() || !second.finished()) {
    const bool progressed = first.progress();
    deadline.poll(second.progress() || progressed,
                  [&] { return first.finished() ? second.awaited() : first.awaited(); });
  }
  return timings;
}

}  // namespace paralet::driver
