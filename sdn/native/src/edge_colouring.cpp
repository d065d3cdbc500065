// SPDX-License-Identifier: Apache-2.0
#include "edge_colouring.hpp"

#include <algorithm>
#include <bit>

namespace paralet::planners {

namespace {
constexpr int kMostFailures = 256;  // chains that meet a forbidden colour, or are too long, before an edge gives up
}  // namespace

EdgeColouring::EdgeColouring(std::int32_t left, std::int32_t right, std::int32_t colours)
    : left_(left),
      colours_(colours),
      words_((index(colours) + 63) / 64),
      vertices_(index(left + right), Vertex{0, colours, 1, colours, false}),
      allowed_(vertices_.size() * words_, ~std::uint64_t{0}),
      count_(vertices_.size() * index(colours), 0),
      head_(count_.size(), kNone) {
  if (colours % 64 != 0) {
    for (std::size_t v = 0; v < vertices_.size(); ++v) {
      allowed_[v * words_ + words_ - 1] = (std::uint64_t{1} << (colours % 64)) - 1;
    }
  }
  free_ = allowed_;
}

void EdgeColouring::forbid(std::int32_t vertex, std::int32_t colour) {
  if (!is_allowed(vertex, colour)) return;
  allowed_[index(vertex) * words_ + index(colour) / 64] &= ~(std::uint64_t{1} << (colour % 64));
  --vertices_[index(vertex)].allowed;
  rebuild(vertex);
}

EdgeColouring::Edge EdgeColouring::insert(std::int32_t left_vertex, std::int32_t right_vertex, std::size_t max_moves,
                                          int tries) {
  moves_.clear();
  const auto left = left_vertex;
  const auto right = left_ + right_vertex;
  auto least = first_common(allowed_at(left), allowed_at(right));
  if (least == kNone) return kNone;
  const Edge edge = new_edge(left, right);
  const bool back = std::max(vertices_[index(left)].level, vertices_[index(right)].level) == 2;
  const auto both = back ? last_common(free_at(left), free_at(right)) : first_common(free_at(left), free_at(right));
  if (both != kNone) {
    link(2 * edge, both);
    link(2 * edge + 1, both);
  } else if (!insert_by_chain(edge, max_moves, tries)) {
    const auto load = [&](std::int32_t colour) { return std::max(count(left, colour), count(right, colour)); };
    for (auto c = least; c != kNone; c = next_common(allowed_at(left), allowed_at(right), c)) {
      if (load(c) < load(least)) least = c;
    }
    link(2 * edge, least);
    link(2 * edge + 1, least);
    remember_uneven(left);
    remember_uneven(right);
  }
  set_degree(left, degree(left) + 1);
  set_degree(right, degree(right) + 1);
  return edge;
}

EdgeColouring::Edge EdgeColouring::insert_coloured(std::int32_t left_vertex, std::int32_t right_vertex,
                                                   std::int32_t at_left, std::int32_t at_right) {
  moves_.clear();
  remember_uneven(left_vertex);
  remember_uneven(left_ + right_vertex);
  const Edge edge = new_edge(left_vertex, left_ + right_vertex);
  link(2 * edge, at_left);
  link(2 * edge + 1, at_right);
  set_degree(left_vertex, degree(left_vertex) + 1);
  set_degree(left_ + right_vertex, degree(left_ + right_vertex) + 1);
  return edge;
}

void EdgeColouring::remove(Edge edge, std::size_t max_moves) {
  moves_.clear();
  std::int32_t at[2];
  for (const int side : {0, 1}) {
    const auto end = 2 * edge + side;
    at[side] = ends_[index(end)].vertex;
    unlink(end);
    ends_[index(end)].vertex = kNone;
    set_degree(at[side], degree(at[side]) - 1);
  }
  unused_.push_back(edge);
  for (const int side : {0, 1}) {
    if (!even_out_vertex(at[side], max_moves)) remember_uneven(at[side]);
  }
}

void EdgeColouring::even_out(std::size_t max_moves) {
  std::erase_if(uneven_, [&](std::int32_t vertex) {
    const bool even = even_out_vertex(vertex, max_moves);
    if (even) vertices_[index(vertex)].uneven = false;
    return even;
  });
}

std::int32_t EdgeColouring::most() const {
  std::int32_t most = 0;
  for (const auto count : count_) most = std::max(most, count);
  return most;
}

EdgeColouring::Edge EdgeColouring::new_edge(std::int32_t left_vertex, std::int32_t right_vertex) {
  Edge edge = static_cast<Edge>(stamp_.size());
  if (unused_.empty()) {
    ends_.resize(ends_.size() + 2);
    stamp_.push_back(0);
  } else {
    edge = unused_.back();
    unused_.pop_back();
  }
  ends_[2 * index(edge)].vertex = left_vertex;
  ends_[2 * index(edge) + 1].vertex = right_vertex;
  return edge;
}

void EdgeColouring::link(std::int32_t end, std::int32_t colour) {
  End& it = ends_[index(end)];
  it.colour = colour;
  const auto at = cell(it.vertex, colour);
  std::int32_t& head = head_[at];
  if (head == kNone) {
    head = it.next = it.previous = end;
  } else {
    it.next = head;
    it.previous = ends_[index(head)].previous;
    ends_[index(it.previous)].next = end;
    ends_[index(head)].previous = end;
  }
  if (++count_[at] >= vertices_[index(it.vertex)].level) {
    free_at(it.vertex)[index(colour) / 64] &= ~(std::uint64_t{1} << (colour % 64));
  }
}

void EdgeColouring::unlink(std::int32_t end) {
  const End& it = ends_[index(end)];
  const auto at = cell(it.vertex, it.colour);
  std::int32_t& head = head_[at];
  if (it.next == end) {
    head = kNone;
  } else {
    ends_[index(it.previous)].next = it.next;
    ends_[index(it.next)].previous = it.previous;
    if (head == end) head = it.next;
  }
  if (--count_[at] < vertices_[index(it.vertex)].level && is_allowed(it.vertex, it.colour)) {
    free_at(it.vertex)[index(it.colour) / 64] |= std::uint64_t{1} << (it.colour % 64);
  }
}

void EdgeColouring::recolour(Edge edge, std::int32_t colour) {
  moves_.push_back({edge, {this->colour(edge, 0), this->colour(edge, 1)}});
  for (const int side : {0, 1}) {
    unlink(2 * edge + side);
    link(2 * edge + side, colour);
  }
}

void EdgeColouring::set_degree(std::int32_t vertex, std::int32_t degree) {
  Vertex& it = vertices_[index(vertex)];
  it.degree = degree;
  if (degree >= it.until || degree < it.until - it.allowed) rebuild(vertex);
}

void EdgeColouring::rebuild(std::int32_t vertex) {
  Vertex& it = vertices_[index(vertex)];
  it.level = it.allowed == 0 ? 0 : it.degree / it.allowed + 1;
  it.until = it.level * it.allowed;
  std::uint64_t* free = free_at(vertex);
  std::fill_n(free, words_, 0);
  for (std::int32_t c = 0; c < colours_; ++c) {
    if (count(vertex, c) < it.level) free[index(c) / 64] |= std::uint64_t{1} << (c % 64);
  }
  for (std::size_t w = 0; w < words_; ++w) free[w] &= allowed_at(vertex)[w];
}

std::int32_t EdgeColouring::first_common(const std::uint64_t* a, const std::uint64_t* b) const {
  for (std::size_t w = 0; w < words_; ++w) {
    if (const auto common = a[w] & b[w]) return static_cast<std::int32_t>(64 * w) + std::countr_zero(common);
  }
  return kNone;
}

std::int32_t EdgeColouring::last_common(const std::uint64_t* a, const std::uint64_t* b) const {
  for (std::size_t w = words_; w-- > 0;) {
    if (const auto common = a[w] & b[w]) return static_cast<std::int32_t>(64 * w) + 63 - std::countl_zero(common);
  }
  return kNone;
}

std::int32_t EdgeColouring::next_common(const std::uint64_t* a, const std::uint64_t* b, std::int32_t after) const {
  std::size_t w = (index(after) + 1) / 64;
  std::uint64_t mask = ~std::uint64_t{0} << ((after + 1) % 64);
  for (; w < words_; ++w, mask = ~std::uint64_t{0}) {
    if (const auto common = a[w] & b[w] & mask) return static_cast<std::int32_t>(64 * w) + std::countr_zero(common);
  }
  return kNone;
}

/// Colours `edge` with a, which is free at one end and full at the other, and moves one unit there from a to b, which
/// is free there. Where the vertices on the way allow both colours that always succeeds: an alternating chain of a and
/// b cannot come back and fill a at the first end, because it would arrive there by a and leave by b.
bool EdgeColouring::insert_by_chain(Edge edge, std::size_t max_moves, int tries) {
  struct Chain {
    std::int32_t colour, other;
    int side;
  };
  const std::int32_t vertex[2] = {ends_[2 * index(edge)].vertex, ends_[2 * index(edge) + 1].vertex};
  const auto attempt = [&](const Chain& chain, std::size_t limit) {
    link(2 * edge, chain.colour);
    link(2 * edge + 1, chain.colour);
    if (shift(vertex[chain.side], chain.colour, chain.other, limit)) return true;
    unlink(2 * edge);
    unlink(2 * edge + 1);
    return false;
  };
  Chain best{kNone, kNone, 0};
  std::size_t limit = max_moves;
  int failures = 0;
  const auto first_free = [&](int side) { return first_common(free_at(vertex[side]), allowed_at(vertex[side])); };
  const auto next_free = [&](int side, std::int32_t after) {
    return next_common(free_at(vertex[side]), allowed_at(vertex[side]), after);
  };
  for (auto a = first_free(0); a != kNone && tries > 0; a = next_free(0, a)) {
    for (auto b = first_free(1); b != kNone && tries > 0; b = next_free(1, b)) {
      for (const Chain& chain : {Chain{a, b, 1}, Chain{b, a, 0}}) {
        if (!is_allowed(vertex[chain.side], chain.colour)) continue;
        if (attempt(chain, limit)) {
          if (--tries <= 0 || moves_.size() <= 1) return true;
          best = chain;
          limit = moves_.size() - 1;
          undo(0);
          unlink(2 * edge);
          unlink(2 * edge + 1);
        } else if (best.colour != kNone) {
          --tries;
        } else if (++failures == kMostFailures) {
          return false;
        }
      }
    }
  }
  return best.colour != kNone && attempt(best, max_moves);
}

/// Moves one unit of `vertex` from colour `from` to `to`, and whatever that displaces, until a vertex gains by it. True
/// when done; otherwise nothing has changed. Each vertex on the way keeps its counts, and the last one's difference
/// between the two colours does not grow.
bool EdgeColouring::shift(std::int32_t vertex, std::int32_t from, std::int32_t to, std::size_t max_moves) {
  const auto first = moves_.size();
  ++chain_;
  for (;;) {
    const auto end = head_[cell(vertex, from)];
    const Edge edge = end / 2;
    // Recoloured ends go to the back of their rings, so a stamped one at the front means that all of them are.
    if (end == kNone || stamp_[index(edge)] == chain_ || moves_.size() - first >= max_moves) break;
    const End& far = ends_[index(end ^ 1)];
    const auto next = far.vertex;
    const auto was = far.colour;
    if (!is_allowed(next, to)) break;
    stamp_[index(edge)] = chain_;
    const bool gains = count(next, to) < count(next, was);
    recolour(edge, to);
    if (gains) return true;
    vertex = next;
    from = to;
    to = was;
  }
  undo(first);
  return false;
}

void EdgeColouring::undo(std::size_t moves_kept) {
  while (moves_.size() > moves_kept) {
    const Move move = moves_.back();
    moves_.pop_back();
    for (const int side : {0, 1}) {
      unlink(2 * move.edge + side);
      link(2 * move.edge + side, move.was[side]);
    }
  }
}

/// Whether the vertex is even now.
bool EdgeColouring::even_out_vertex(std::int32_t vertex, std::size_t max_moves) {
  for (;;) {
    const auto* allowed = allowed_at(vertex);
    auto most = first_common(allowed, allowed);
    auto least = most;
    for (auto c = most; c != kNone; c = next_common(allowed, allowed, c)) {
      if (count(vertex, c) > count(vertex, most)) most = c;
      if (count(vertex, c) < count(vertex, least)) least = c;
    }
    if (most == kNone || count(vertex, most) - count(vertex, least) < 2) return true;
    if (!shift(vertex, most, least, max_moves - moves_.size())) return false;
  }
}

void EdgeColouring::remember_uneven(std::int32_t vertex) {
  Vertex& it = vertices_[index(vertex)];
  if (it.uneven) return;
  it.uneven = true;
  uneven_.push_back(vertex);
}

}  // namespace paralet::planners
