// SPDX-License-Identifier: Apache-2.0
// Max-min fair rates of flows that come and go, kept exact from change to change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace paralet::fluid {

/// A flow's use of a link: of its rate, `share` crosses it. 1 for a path; less for a flow that is sprayed over many.
struct Use {
  std::uint32_t link;
  double share;
};

/// Rates by progressive filling: all flows rise together, each in proportion to its weight, and a flow stops when a
/// link of its is full (D. Bertsekas and R. Gallager, "Data Networks", section 6.5.2).
///
/// The *level* of a link is the rate per weight at which its flows stop, infinite while it is not full; a flow has the
/// least level of its links. Levels of which each fits the others are max-min fair, and no others are. So after a
/// change levels are made to fit again from the links where it happened outwards, and where that reaches far, all is
/// filled anew. Both give the same rates, up to rounding.
class Sharing {
 public:
  using Flow = std::uint32_t;

  /// Capacities are not negative. A change of a level by less than `precision`, relatively, is not passed on.
  Sharing(std::span<const double> capacity, double precision);

  /// A flow that is not active yet. `uses` name each link once and at least one; shares and weight are above zero.
  Flow add(std::span<const Use> uses, double weight);
  void set_active(Flow flow, bool active);
  void set_uses(Flow flow, std::span<const Use> uses);
  void set_capacity(std::uint32_t link, double capacity);

  /// Bring all rates up to date; the flows whose rate has changed, each once. Valid until the next call.
  std::span<const Flow> settle();

  [[nodiscard]] double rate(Flow flow) const { return flows_[flow].rate; }
  [[nodiscard]] std::span<const Use> uses(Flow flow) const {
    return std::span(uses_).subspan(flows_[flow].first, flows_[flow].count);
  }
  [[nodiscard]] std::size_t links() const { return links_.size(); }
  [[nodiscard]] std::size_t flows() const { return flows_.size(); }
  /// How often `settle` had to fill all anew, and how often it got by with a part.
  [[nodiscard]] std::uint64_t fillings() const { return fillings_; }
  [[nodiscard]] std::uint64_t repairs() const { return repairs_; }

 private:
  static constexpr double kOpen = std::numeric_limits<double>::infinity();

  struct Link {
    double capacity;
    double level = kOpen;
    bool queued = false;
    std::vector<std::uint32_t> crossing;  // uses of active flows, by their number
  };
  struct FlowState {
    std::uint32_t first = 0;  // of its uses
    std::uint32_t count = 0;
    double weight = 1;
    double rate = 0;
    bool active = false;
    bool changed = false;
  };
  struct Demand {
    double cap;     // the level that the flow's other links leave it
    double weight;  // times share
  };

  void attach(Flow flow);
  void detach(Flow flow);
  void touch(std::uint32_t link);
  void mark(Flow flow);
  bool repair();
  void fill();
  double fitting_level(const Link& link);
  [[nodiscard]] double least_level(const FlowState& flow, std::uint32_t except) const;
  void pass_on(std::uint32_t l, double before);

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
