// SPDX-License-Identifier: Apache-2.0
#include "bounded_flow.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace paralet::planners {

namespace {

/// Maximum flow by Dinic's algorithm. The network keeps its flow between calls of `maximise`.
class Network {
 public:
  explicit Network(std::size_t nodes) : first_(nodes, kNone), depth_(nodes), current_(nodes) {}

  /// Adds an arc and returns its number, which `flow` and `close` take.
  std::size_t add(std::size_t from, std::size_t to, std::int64_t capacity) {
    arcs_.push_back({to, first_[from], capacity});
    first_[from] = arcs_.size() - 1;
    arcs_.push_back({from, first_[to], 0});
    first_[to] = arcs_.size() - 1;
    return arcs_.size() - 2;
  }
  [[nodiscard]] std::int64_t flow(std::size_t arc) const { return arcs_[arc ^ 1].left; }
  void close(std::size_t arc) { arcs_[arc].left = arcs_[arc ^ 1].left = 0; }

  std::int64_t maximise(std::size_t source, std::size_t sink) {
    std::int64_t total = 0;
    while (levels(source, sink)) {
      current_ = first_;
      while (const auto pushed = push(source, sink)) total += pushed;
    }
    return total;
  }

 private:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  struct Arc {
    std::size_t to;
    std::size_t next;  // arc from the same node
    std::int64_t left;
  };

  bool levels(std::size_t source, std::size_t sink) {
    std::fill(depth_.begin(), depth_.end(), kNone);
    depth_[source] = 0;
    queue_.assign(1, source);
    for (std::size_t i = 0; i < queue_.size(); ++i) {
      for (auto a = first_[queue_[i]]; a != kNone; a = arcs_[a].next) {
        if (arcs_[a].left > 0 && depth_[arcs_[a].to] == kNone) {
          depth_[arcs_[a].to] = depth_[queue_[i]] + 1;
          queue_.push_back(arcs_[a].to);
        }
      }
    }
    return depth_[sink] != kNone;
  }

  /// One augmenting path, found without recursion: `path_` holds the arcs so far.
  std::int64_t push(std::size_t source, std::size_t sink) {
    path_.clear();
    std::size_t node = source;
    while (node != sink) {
      auto& a = current_[node];
      while (a != kNone && (arcs_[a].left == 0 || depth_[arcs_[a].to] != depth_[node] + 1)) a = arcs_[a].next;
      if (a != kNone) {
        path_.push_back(a);
        node = arcs_[a].to;
      } else if (path_.empty()) {
        return 0;
      } else {
        node = arcs_[path_.back() ^ 1].to;
        current_[node] = arcs_[path_.back()].next;
        path_.pop_back();
      }
    }
    std::int64_t amount = std::numeric_limits<std::int64_t>::max();
    for (const auto a : path_) amount = std::min(amount, arcs_[a].left);
    for (const auto a : path_) {
      arcs_[a].left -= amount;
      arcs_[a ^ 1].left += amount;
    }
    return amount;
  }

  std::vector<std::size_t> first_;
  std::vector<std::size_t> depth_;
  std::vector<std::size_t> current_;
  std::vector<std::size_t> queue_;
  std::vector<std::size_t> path_;
  std::vector<Arc> arcs_;
};

}  // namespace

std::optional<std::vector<std::int64_t>> bounded_flow(std::span<const std::int32_t> left,
                                                      std::span<const std::int32_t> right, std::span<const Range> pair,
                                                      std::span<const Range> left_vertex,
                                                      std::span<const Range> right_vertex, Groups left_groups,
                                                      Groups right_groups) {
  for (const auto ranges : {pair, left_vertex, right_vertex, left_groups.ranges, right_groups.ranges}) {
    for (const auto& range : ranges) {
      if (range.least > range.most) return std::nullopt;
    }
  }
  // Lower bounds become demands: what an arc must carry comes from the node `extra` and goes to the node `must`.
  const auto lefts = left_vertex.size();
  const auto rights = right_vertex.size();
  const auto left_group = lefts + rights;  // the first node of a group
  const auto right_group = left_group + left_groups.ranges.size();
  const auto source = right_group + right_groups.ranges.size();
  const auto sink = source + 1;
  const auto extra = source + 2;
  const auto must = source + 3;
  Network network(source + 4);
  std::vector<std::int64_t> surplus(source + 2, 0);
  const auto bounded = [&](std::size_t from, std::size_t to, const Range& range) {
    surplus[to] += range.least;
    surplus[from] -= range.least;
    return network.add(from, to, range.most - range.least);
  };
  const auto above = [](const Groups& groups, std::size_t vertex, std::size_t first, std::size_t otherwise) {
    return groups.ranges.empty() ? otherwise : first + static_cast<std::size_t>(groups.of_vertex[vertex]);
  };
  for (std::size_t v = 0; v < lefts; ++v) bounded(above(left_groups, v, left_group, source), v, left_vertex[v]);
  for (std::size_t v = 0; v < rights; ++v) {
    bounded(lefts + v, above(right_groups, v, right_group, sink), right_vertex[v]);
  }
  for (std::size_t g = 0; g < left_groups.ranges.size(); ++g) bounded(source, left_group + g, left_groups.ranges[g]);
  for (std::size_t g = 0; g < right_groups.ranges.size(); ++g) bounded(right_group + g, sink, right_groups.ranges[g]);
  std::vector<std::size_t> arcs(pair.size());
  for (std::size_t p = 0; p < pair.size(); ++p) {
    arcs[p] = bounded(static_cast<std::size_t>(left[p]), lefts + static_cast<std::size_t>(right[p]), pair[p]);
  }
  std::int64_t demanded = 0;
  for (std::size_t v = 0; v < surplus.size(); ++v) {
    if (surplus[v] > 0) {
      network.add(extra, v, surplus[v]);
      demanded += surplus[v];
    } else if (surplus[v] < 0) {
      network.add(v, must, -surplus[v]);
    }
  }
  const auto back = network.add(sink, source, std::numeric_limits<std::int64_t>::max() / 4);
  if (network.maximise(extra, must) < demanded) return std::nullopt;
  network.close(back);
  network.maximise(source, sink);
  std::vector<std::int64_t> answer(pair.size());
  for (std::size_t p = 0; p < pair.size(); ++p) answer[p] = pair[p].least + network.flow(arcs[p]);
  return answer;
}

}  // namespace paralet::planners
