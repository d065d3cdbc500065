// SPDX-License-Identifier: Apache-2.0
#include "matching.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

namespace paralet::planners {

namespace {

constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

/// A node is a vertex, numbered from 0, or a blossom: an odd cycle of nodes, numbered from `vertices`. The top of a
/// node is the outermost blossom that contains it, or itself. Trees of alternating edges grow from unmatched tops.
class Matcher {
 public:
  Matcher(std::size_t vertices, std::span<const std::int64_t> weight)
      : vertices_(vertices),
        nodes_(vertices + vertices / 2),
        weight_(weight),
        between_(nodes_ * nodes_),
        inside_(nodes_ * vertices, none),
        dual_(nodes_, 0),
        mate_(nodes_, none),
        tightest_(nodes_, none),
        top_(nodes_, none),
        parent_(nodes_, none),
        label_(nodes_, Label::free),
        seen_(nodes_, 0),
        cycle_(nodes_) {
    const auto most = weight.empty() ? 0 : *std::max_element(weight.begin(), weight.end());
    for (std::size_t u = 0; u < vertices; ++u) {
      top_[u] = u;
      dual_[u] = most;
      inside_[u * vertices + u] = u;
      for (std::size_t v = 0; v < vertices; ++v) between_[u * nodes_ + v] = {u, v};
    }
  }

  std::vector<std::int32_t> run() {
    while (augmented()) {
    }
    std::vector<std::int32_t> answer(vertices_, -1);
    for (std::size_t v = 0; v < vertices_; ++v) {
      if (mate_[v] != none) answer[v] = static_cast<std::int32_t>(mate_[v]);
    }
    return answer;
  }

 private:
  enum class Label : std::uint8_t { free, outer, inner };

  struct Edge {  // between vertices
    std::size_t from = none;
    std::size_t to = none;
  };

  Edge& between(std::size_t one, std::size_t other) { return between_[one * nodes_ + other]; }
  std::int64_t weight(Edge edge) const { return weight_[edge.from * vertices_ + edge.to]; }
  bool joined(std::size_t one, std::size_t other) {
    const auto edge = between(one, other);
    return edge.from != none && weight(edge) > 0;
  }
  /// The slack of an edge, doubled. Edges without slack may be matched.
  std::int64_t slack(Edge edge) const { return dual_[edge.from] + dual_[edge.to] - 2 * weight(edge); }
  bool on_top(std::size_t node) const { return top_[node] == node; }

  // The slack of outer vertices to other tops.

  void consider(std::size_t vertex, std::size_t node) {
    auto& best = tightest_[node];
    if (best == none || slack(between(vertex, node)) < slack(between(best, node))) best = vertex;
  }
  void find_tightest(std::size_t node) {
    tightest_[node] = none;
    for (std::size_t u = 0; u < vertices_; ++u) {
      if (joined(u, node) && top_[u] != node && label_[top_[u]] == Label::outer) consider(u, node);
    }
  }

  void enqueue(std::size_t node) {
    if (node < vertices_) {
      queue_.push_back(node);
    } else {
      for (const auto part : cycle_[node]) enqueue(part);
    }
  }
  void set_top(std::size_t node, std::size_t top) {
    top_[node] = top;
    if (node < vertices_) return;
    for (const auto part : cycle_[node]) set_top(part, top);
  }

  /// The place of a part in a blossom's cycle, which is turned round if need be so that the way from the base to the
  /// part has an even number of edges.
  std::ptrdiff_t even_place(std::size_t blossom, std::size_t part) {
    auto& cycle = cycle_[blossom];
    const auto place = std::find(cycle.begin(), cycle.end(), part) - cycle.begin();
    if (place % 2 == 0) return place;
    std::reverse(cycle.begin() + 1, cycle.end());
    return std::ssize(cycle) - place;
  }

  void match(std::size_t one, std::size_t other) {
    const auto edge = between(one, other);
    mate_[one] = edge.to;
    if (one < vertices_) return;
    const auto part = inside_[one * vertices_ + edge.from];
    const auto place = even_place(one, part);
    auto& cycle = cycle_[one];
    for (std::ptrdiff_t i = 0; i < place; ++i) {
      match(cycle[static_cast<std::size_t>(i)], cycle[static_cast<std::size_t>(i ^ 1)]);
    }
    match(part, other);
    std::rotate(cycle.begin(), cycle.begin() + place, cycle.end());
  }

  /// Exchanges matched and unmatched edges on the way from `one` to the root of its tree.
  void augment(std::size_t one, std::size_t other) {
    while (true) {
      const auto before = mate_[one] == none ? none : top_[mate_[one]];
      match(one, other);
      if (before == none) return;
      const auto above = top_[parent_[before]];
      match(before, above);
      one = above;
      other = before;
    }
  }

  /// The nearest common node of two outer tops in their tree; none if they are in different trees.
  std::size_t common(std::size_t one, std::size_t other) {
    for (++round_; one != none || other != none; std::swap(one, other)) {
      if (one == none) continue;
      if (seen_[one] == round_) return one;
      seen_[one] = round_;
      one = mate_[one] == none ? none : top_[mate_[one]];
      if (one != none) one = top_[parent_[one]];
    }
    return none;
  }

  void shrink(std::size_t one, std::size_t base, std::size_t other) {
    auto blossom = vertices_;
    while (top_[blossom] != none) ++blossom;
    dual_[blossom] = 0;
    label_[blossom] = Label::outer;
    mate_[blossom] = mate_[base];
    auto& cycle = cycle_[blossom];
    cycle.assign(1, base);
    for (const auto end : {one, other}) {
      std::reverse(cycle.begin() + 1, cycle.end());
      for (auto x = end; x != base;) {
        const auto inner = top_[mate_[x]];
        cycle.insert(cycle.end(), {x, inner});
        enqueue(inner);
        x = top_[parent_[inner]];
      }
    }
    set_top(blossom, blossom);
    std::fill_n(inside_.begin() + static_cast<std::ptrdiff_t>(blossom * vertices_), vertices_, none);
    for (std::size_t x = 0; x < nodes_; ++x) between(blossom, x) = between(x, blossom) = {};
    for (const auto part : cycle) {
      for (std::size_t x = 0; x < nodes_; ++x) {
        if (top_[x] == none || !joined(part, x)) continue;
        if (!joined(blossom, x) || slack(between(part, x)) < slack(between(blossom, x))) {
          between(blossom, x) = between(part, x);
          between(x, blossom) = between(x, part);
        }
      }
      for (std::size_t v = 0; v < vertices_; ++v) {
        if (inside_[part * vertices_ + v] != none) inside_[blossom * vertices_ + v] = part;
      }
    }
    find_tightest(blossom);
  }

  void expand(std::size_t blossom) {
    for (const auto part : cycle_[blossom]) set_top(part, part);
    const auto entry = inside_[blossom * vertices_ + between(blossom, parent_[blossom]).from];
    const auto place = static_cast<std::size_t>(even_place(blossom, entry));
    const auto& cycle = cycle_[blossom];
    for (std::size_t i = 0; i < place; i += 2) {
      const auto inner = cycle[i];
      const auto outer = cycle[i + 1];
      parent_[inner] = between(outer, inner).from;
      label_[inner] = Label::inner;
      label_[outer] = Label::outer;
      tightest_[inner] = none;
      find_tightest(outer);
      enqueue(outer);
    }
    label_[entry] = Label::inner;
    parent_[entry] = parent_[blossom];
    for (auto i = place + 1; i < cycle.size(); ++i) {
      label_[cycle[i]] = Label::free;
      find_tightest(cycle[i]);
    }
    top_[blossom] = none;
  }

  /// Takes an edge without slack from an outer vertex into the tree. True if the matching grew.
  bool grow(Edge edge) {
    const auto one = top_[edge.from];
    const auto other = top_[edge.to];
    if (label_[other] == Label::free) {
      parent_[other] = edge.from;
      label_[other] = Label::inner;
      const auto partner = top_[mate_[other]];
      tightest_[other] = tightest_[partner] = none;
      label_[partner] = Label::outer;
      enqueue(partner);
    } else if (label_[other] == Label::outer) {
      const auto base = common(one, other);
      if (base == none) {
        augment(one, other);
        augment(other, one);
        return true;
      }
      shrink(one, base, other);
    }
    return false;
  }

  /// Follows edges without slack from the queue's vertices. True if the matching grew.
  bool scan() {
    while (!queue_.empty()) {
      const auto u = queue_.back();
      queue_.pop_back();
      if (label_[top_[u]] == Label::inner) continue;
      for (std::size_t v = 0; v < vertices_; ++v) {
        if (!joined(u, v) || top_[u] == top_[v]) continue;
        if (slack({u, v}) > 0) {
          consider(u, top_[v]);
        } else if (grow({u, v})) {
          return true;
        }
      }
    }
    return false;
  }

  /// Changes the dual variables until another edge has no slack or a blossom is to be expanded. False at the end: the
  /// dual variable of an unmatched vertex is used up.
  bool adjust() {
    auto step = std::numeric_limits<std::int64_t>::max();
    for (std::size_t x = 0; x < nodes_; ++x) {
      if (!on_top(x)) continue;
      if (x >= vertices_ && label_[x] == Label::inner) step = std::min(step, dual_[x] / 2);
      if (tightest_[x] == none || label_[x] == Label::inner) continue;
      const auto room = slack(between(tightest_[x], x));
      step = std::min(step, label_[x] == Label::free ? room : room / 2);
    }
    for (std::size_t v = 0; v < vertices_; ++v) {
      if (label_[top_[v]] == Label::outer && dual_[v] <= step) return false;
    }
    for (std::size_t x = 0; x < nodes_; ++x) {
      if (top_[x] == none || (x >= vertices_ && !on_top(x))) continue;
      const auto label = label_[top_[x]];
      const auto change = x < vertices_ ? -step : 2 * step;
      if (label == Label::outer) dual_[x] += change;
      if (label == Label::inner) dual_[x] -= change;
    }
    return true;
  }

  /// Makes the matching larger by one pair. False if that would gain nothing.
  bool augmented() {
    std::fill(label_.begin(), label_.end(), Label::free);
    std::fill(tightest_.begin(), tightest_.end(), none);
    queue_.clear();
    for (std::size_t x = 0; x < nodes_; ++x) {
      if (!on_top(x) || mate_[x] != none) continue;
      parent_[x] = none;
      label_[x] = Label::outer;
      enqueue(x);
    }
    if (queue_.empty()) return false;
    while (true) {
      if (scan()) return true;
      if (!adjust()) return false;
      for (std::size_t x = 0; x < nodes_; ++x) {
        if (!on_top(x) || tightest_[x] == none || top_[tightest_[x]] == x) continue;
        const auto edge = between(tightest_[x], x);
        if (slack(edge) == 0 && grow(edge)) return true;
      }
      for (auto x = vertices_; x < nodes_; ++x) {
        if (on_top(x) && label_[x] == Label::inner && dual_[x] == 0) expand(x);
      }
    }
  }

  std::size_t vertices_;
  std::size_t nodes_;
  std::span<const std::int64_t> weight_;
  std::vector<Edge> between_;          // by two nodes: the edge of least slack between them
  std::vector<std::size_t> inside_;    // by blossom and vertex: the part that contains the vertex
  std::vector<std::int64_t> dual_;     // by node; of vertices doubled
  std::vector<std::size_t> mate_;      // by top: the vertex to which it is matched
  std::vector<std::size_t> tightest_;  // by top: the outer vertex with the edge of least slack to it
  std::vector<std::size_t> top_;       // none for blossoms that do not exist
  std::vector<std::size_t> parent_;    // by inner top: the vertex above it in its tree
  std::vector<Label> label_;           // by top
  std::vector<std::uint64_t> seen_;
  std::uint64_t round_ = 0;
  std::vector<std::vector<std::size_t>> cycle_;  // by blossom: its parts, the base first
  std::vector<std::size_t> queue_;               // outer vertices whose edges are to be followed
};

}  // namespace

std::vector<std::int32_t> heaviest_matching(std::int32_t vertices, std::span<const std::int64_t> weight) {
  return Matcher(static_cast<std::size_t>(vertices), weight).run();
}

}  // namespace paralet::planners
