// SPDX-License-Identifier: Apache-2.0
#include "plan.hpp"

#include <nlohmann/json.hpp>
#include <ostream>

namespace paralet::driver {
namespace {

struct Message {
  unsigned step, src, dst, channel;
  Range range;
  bool combine;
};

void print(const Message& message, std::ostream& out) {
  out << nlohmann::json{{"step", message.step},       {"src", message.src},           {"dst", message.dst},
                        {"channel", message.channel}, {"first", message.range.first}, {"count", message.range.count},
                        {"combine", message.combine}}
      << '\n';
}

}  // namespace

void print_plan(const Options& options, std::ostream& out) {
  const Extent extent = options.extent();
  const unsigned n = extent.ranks;
  for (unsigned rank = 0; rank < n; ++rank) {
    if (options.collective == Collective::kRing) {
      for (const auto& [step, range] : ring_sends(rank, extent)) {
        print({step, rank, (rank + 1) % n, 0, range, step % (2 * (n - 1)) < n - 1}, out);
      }
    } else if (options.collective == Collective::kTree) {
      const auto places = double_binary_tree(rank, n);
      const auto slices = tree_slices(extent);
      for (unsigned channel = 0; channel < places.size(); ++channel) {
        const TreePlace& place = places[channel];
        for (const Range& range : slices[channel]) {
          if (place.parent) print({step_up(place), rank, *place.parent, channel, range, true}, out);
          for (const unsigned child : place.children) {
            print({step_down(place, n), rank, child, channel, range, false}, out);
          }
        }
      }
    }
  }
}

}  // namespace paralet::driver
