// SPDX-License-Identifier: Apache-2.0
// Equitable edge colouring of a bipartite multigraph, maintained while edges are added and removed.
//
// Vertices 0 .. left - 1 are on one side, left .. left + right - 1 on the other. A vertex of degree d with S allowed
// colours has each colour floor(d / S) or ceil(d / S) times, which is the least possible maximum at every vertex at
// once. Such a colouring exists by de Werra's theorem ("Equitable colorations of graphs", RIRO 1971), or König's for d
// <= S. It is found by alternating (Kempe) chains. The theorem does not hold where vertices may not use some colours;
// there the colouring is the best that chains find.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace paralet::planners {

class EdgeColouring {
 public:
  using Edge = std::int32_t;
  static constexpr std::int32_t kNone = -1;
  static constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

  /// How an edge was recoloured: `edge` had colours `was` at its left and right end.
  struct Move {
    Edge edge;
    std::int32_t was[2];
  };

  EdgeColouring(std::int32_t left, std::int32_t right, std::int32_t colours);

  /// Reserves memory for this number of edges.
  void reserve(std::size_t edges) {
    ends_.reserve(2 * edges);
    stamp_.reserve(edges);
  }

  /// Forbids `colour` at `vertex`. The vertex must have no edge of that colour.
  void forbid(std::int32_t vertex, std::int32_t colour);

  /// Adds an edge and colours it, recolouring at most `max_moves` others. It tries a free colour first, then the
  /// shortest of `tries` chains. If all chains are too long it takes the colour that its ends use least. Colours are
  /// given out in ascending order, and in descending order the second time, so that late edges are those that share.
  /// Returns kNone if no colour is allowed at both ends.
  Edge insert(std::int32_t left_vertex, std::int32_t right_vertex, std::size_t max_moves = kUnlimited, int tries = 1);

  /// Adds an edge with a given colour at each end, and recolours no other. The two colours may differ. Each must be
  /// allowed at its end.
  Edge insert_coloured(std::int32_t left_vertex, std::int32_t right_vertex, std::int32_t at_left,
                       std::int32_t at_right);

  /// Removes an edge and restores the balance at its ends, recolouring at most `max_moves` others.
  void remove(Edge edge, std::size_t max_moves = kUnlimited);

  /// Makes every vertex use its colours as evenly as chains allow. Needed after insert_coloured, and after changes that
  /// ran out of moves. Its moves are appended to those of the previous change, up to `max_moves` in all.
  void even_out(std::size_t max_moves = kUnlimited);

  /// The edges that the last insert or remove, and a following even_out, recoloured, in order. An edge may occur more
  /// than once.
  [[nodiscard]] std::span<const Move> moves() const { return moves_; }

  [[nodiscard]] std::int32_t colour(Edge edge, int side) const { return ends_[2 * index(edge) + index(side)].colour; }
  [[nodiscard]] std::int32_t vertex(Edge edge, int side) const { return ends_[2 * index(edge) + index(side)].vertex; }
  [[nodiscard]] bool holds(Edge edge) const {
    return edge >= 0 && 2 * index(edge) < ends_.size() && ends_[2 * index(edge)].vertex != kNone;
  }
  [[nodiscard]] std::int32_t degree(std::int32_t vertex) const { return vertices_[index(vertex)].degree; }
  [[nodiscard]] std::int32_t count(std::int32_t vertex, std::int32_t colour) const {
    return count_[cell(vertex, colour)];
  }
  /// The largest count of one colour at one vertex.
  [[nodiscard]] std::int32_t most() const;

 private:
  struct Vertex {
    std::int32_t degree = 0;
    std::int32_t allowed = 0;  // how many colours
    std::int32_t level = 1;    // the count that the next edge may bring a colour to: degree / allowed + 1
    std::int32_t until = 0;    // the degree at which the level rises
    bool uneven = false;       // whether it is one of `uneven_`
  };
  struct End {
    std::int32_t vertex = kNone;
    std::int32_t colour = kNone;
    std::int32_t next = kNone;  // the ends of one colour at one vertex form a ring
    std::int32_t previous = kNone;
  };

  static std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] std::size_t cell(std::int32_t vertex, std::int32_t colour) const {
    return index(vertex) * index(colours_) + index(colour);
  }
  [[nodiscard]] std::uint64_t* free_at(std::int32_t vertex) { return &free_[index(vertex) * words_]; }
  [[nodiscard]] const std::uint64_t* allowed_at(std::int32_t vertex) const { return &allowed_[index(vertex) * words_]; }
  [[nodiscard]] bool is_allowed(std::int32_t vertex, std::int32_t colour) const {
    return ((allowed_at(vertex)[index(colour) / 64] >> (colour % 64)) & 1U) != 0;
  }

  Edge new_edge(std::int32_t left_vertex, std::int32_t right_vertex);
  void link(std::int32_t end, std::int32_t colour);
  void unlink(std::int32_t end);
  void recolour(Edge edge, std::int32_t colour);
  void set_degree(std::int32_t vertex, std::int32_t degree);
  void rebuild(std::int32_t vertex);
  [[nodiscard]] std::int32_t first_common(const std::uint64_t* a, const std::uint64_t* b) const;
  [[nodiscard]] std::int32_t last_common(const std::uint64_t* a, const std::uint64_t* b) const;
  [[nodiscard]] std::int32_t next_common(const std::uint64_t* a, const std::uint64_t* b, std::int32_t after) const;
  bool insert_by_chain(Edge edge, std::size_t max_moves, int tries);
  bool shift(std::int32_t vertex, std::int32_t from, std::int32_t to, std::size_t max_moves);
  void undo(std::size_t moves_kept);
  bool even_out_vertex(std::int32_t vertex, std::size_t max_moves);
  void remember_uneven(std::int32_t vertex);

  std::int32_t left_;
  std::int32_t colours_;
  std::size_t words_;
  std::vector<Vertex> vertices_;
  std::vector<std::uint64_t> allowed_;  // per vertex: its colours
  std::vector<std::uint64_t> free_;     // per vertex: allowed colours with a count below its level
  std::vector<std::int32_t> count_;     // per vertex and colour
  std::vector<std::int32_t> head_;      // per vertex and colour: the oldest end of the ring
  std::vector<End> ends_;               // of edge e: 2 e at the left, 2 e + 1 at the right
  std::vector<std::uint32_t> stamp_;    // per edge: the last chain that recoloured it
  std::uint32_t chain_ = 0;
  std::vector<std::int32_t> uneven_;  // vertices that may use their colours less evenly than they could, each once
  std::vector<Edge> unused_;
  std::vector<Move> moves_;
};

}  // namespace paralet::planners
