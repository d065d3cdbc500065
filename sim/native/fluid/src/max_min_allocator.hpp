// SPDX-License-Identifier: Apache-2.0
// Max-min fair rates of flows that start and stop, updated incrementally.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace paralet::fluid {

/// The part `share` of a flow's rate crosses `link`: 1 on a single path, less where a flow is sprayed over several
/// paths.
struct Use {
  std::uint32_t link;
  double share;
};

/// Weighted max-min fair rates by progressive filling: all rates rise together, each in proportion to its flow's
/// weight, and a flow stops when one of its links is full (D. Bertsekas and R. Gallager, "Data Networks",
/// section 6.5.2).
///
/// The *level* of a link is the rate per weight at which its flows stop. It is infinite while the link is not full. A
/// flow's rate is its weight times the lowest level of its links. An assignment is max-min fair exactly when every
/// level is consistent with all others. After a change, `update_rates` therefore repairs levels outwards from the
/// changed links. When a repair would visit a large part of all uses, it recomputes all links. Both give the same
/// rates, up to rounding.
class MaxMinAllocator {
 public:
  using Flow = std::uint32_t;

  /// Capacities must not be negative. Relative changes of a level below `precision` are not propagated.
  MaxMinAllocator(std::span<const double> capacity, double precision);

  /// Adds an inactive flow. `uses` is not empty and names each link once. Shares and weight must be positive.
  Flow add(std::span<const Use> uses, double weight);
  void set_active(Flow flow, bool active);
  void set_uses(Flow flow, std::span<const Use> uses);
  void set_capacity(std::uint32_t link, double capacity);

  /// Brings all rates up to date. Returns the flows whose rate has changed, each once; valid until the next call.
  std::span<const Flow> update_rates();

  [[nodiscard]] double rate(Flow flow) const { return flows_[flow].rate; }
  [[nodiscard]] std::span<const Use> uses(Flow flow) const {
    return std::span(uses_).subspan(flows_[flow].first, flows_[flow].count);
  }
  [[nodiscard]] std::size_t links() const { return links_.size(); }
  [[nodiscard]] std::size_t flows() const { return flows_.size(); }
  /// How often `update_rates` recomputed all links, and how often a repair was enough.
  [[nodiscard]] std::uint64_t fillings() const { return fillings_; }
  [[nodiscard]] std::uint64_t repairs() const { return repairs_; }

 private:
  static constexpr double kNotFull = std::numeric_limits<double>::infinity();

  struct Link {
    double capacity;
    double level = kNotFull;
    bool queued = false;
    std::vector<std::uint32_t> crossing;  // indices of the uses of active flows
  };
  struct FlowState {
    std::uint32_t first = 0;  // index of its first use
    std::uint32_t count = 0;
    double weight = 1;
    double rate = 0;
    bool active = false;
    bool changed = false;
  };
  struct Demand {
    double cap;     // lowest level of the flow's other links
    double weight;  // times share
  };

  void attach(Flow flow);
  void detach(Flow flow);
  void touch(std::uint32_t link);
  void mark_changed(Flow flow);
  bool repair();
  void fill();
  double consistent_level(const Link& link);
  [[nodiscard]] double least_level(const FlowState& flow, std::uint32_t except) const;
  void propagate(std::uint32_t l, double before);

  double precision_;
  std::vector<Link> links_;
  std::vector<FlowState> flows_;
  std::vector<Use> uses_;
  std::vector<Flow> flow_of_;           // by use
  std::vector<std::uint32_t> place_;    // by use: where it is in its link's `crossing`
  std::vector<std::uint32_t> touched_;  // links whose level may not fit, a queue
  std::vector<Flow> changed_;
  std::vector<Demand> demands_;  // of one link; here for its memory
  std::size_t active_uses_ = 0;
  bool reported_ = false;
  std::uint64_t fillings_ = 0;
  std::uint64_t repairs_ = 0;
};

}  // namespace paralet::fluid
