// SPDX-License-Identifier: Apache-2.0
// Python bindings of the packet simulation. All arguments are checked here; the simulation trusts them.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "packet/src/simulation.hpp"

namespace paralet::packet {
namespace {

using namespace paralet::sim;  // NOLINT(google-build-using-namespace): what both bindings share

constexpr double kLongest = 1e6;  // seconds

Time time_of(double seconds) {
  check(seconds >= 0 && seconds <= kLongest, "a time is negative or longer than a million seconds");
  return static_cast<Time>(std::llround(seconds * static_cast<double>(kSecond)));
}

double seconds_of(Time time) { return static_cast<double>(time) / static_cast<double>(kSecond); }

Scheme scheme_of(const std::string& name) {
  constexpr std::array names{"hashed", "oblivious", "recycled", "plb", "conweave", "spraying", "drill", "letflow"};
  const auto* const found = std::ranges::find(names, name);
  check(found != names.end(), "the scheme is unknown");
  return static_cast<Scheme>(found - names.begin());
}

std::unique_ptr<Simulation> make(const Array<std::int64_t>& rate_bps, const Array<double>& propagation_s,
                                 const Array<std::int32_t>& head, const Array<bool>& is_switch,
                                 std::int64_t switch_bytes, std::int64_t port_bytes, std::int64_t mark_bytes,
                                 bool pause, std::int64_t payload_bytes, std::int64_t header_bytes,
                                 std::int64_t ack_bytes, const std::string& receiver, bool dctcp, double window_bdp,
                                 double timeout_rtts, const std::string& scheme, double flowlet_gap_s, double hold_s,
                                 double reroute_rtts, bool lanes_per_host, std::uint64_t seed) {
  check(rate_bps.size() == head.size() && rate_bps.size() == propagation_s.size() && rate_bps.size() % 2 == 0 &&
            rate_bps.size() < kMost,
        "there must be a rate, a propagation and a head for each direction of each link");
  check(std::ranges::all_of(view(rate_bps), [](auto rate) { return rate >= 1000 && rate <= 100'000'000'000'000; }),
        "a rate lies outside 1 kbit/s .. 100 Tbit/s");
  check(std::ranges::all_of(view(head), [&](auto node) { return node >= 0 && node < is_switch.size(); }),
        "a link leads to a node that does not exist");
  check(payload_bytes > 0 && header_bytes > 0 && ack_bytes > 0 && payload_bytes + header_bytes <= 65535 &&
            ack_bytes <= 65535,
        "the sizes of packets must lie in 1 .. 65535 bytes");
  check(switch_bytes >= payload_bytes + header_bytes && port_bytes >= payload_bytes + header_bytes,
        "a buffer cannot hold a packet");
  check(mark_bytes >= 0, "mark_bytes is negative");
  check(receiver == "go_back_n" || receiver == "selective_repeat", "receiver is go_back_n or selective_repeat");
  check(window_bdp > 0 && window_bdp < 1e6 && timeout_rtts >= 1 && timeout_rtts < 1e6 && reroute_rtts >= 1 &&
            reroute_rtts < 1e6,
        "window_bdp or a number of round trips is out of range");
  check(!lanes_per_host || scheme == "hashed", "hosts have lanes under scheme hashed only");
  const NetworkOptions network{.switch_bytes = switch_bytes,
                               .port_bytes = port_bytes,
                               .mark_bytes = mark_bytes,
                               .pause = pause,
                               .largest_bytes = std::max(payload_bytes + header_bytes, ack_bytes),
                               .scheme = scheme_of(scheme),
                               .flowlet_gap = time_of(flowlet_gap_s),
                               .hold = time_of(hold_s)};
  const TransportOptions transport{
      .payload_bytes = payload_bytes,
      .header_bytes = header_bytes,
      .ack_bytes = ack_bytes,
      .receiver = receiver == "go_back_n" ? Receiver::kGoBackN : Receiver::kSelectiveRepeat,
      .dctcp = dctcp,
      .window_bdp = window_bdp,
      .timeout_rtts = timeout_rtts,
      .scheme = network.scheme,
      .reroute_rtts = reroute_rtts,
      .lanes_per_host = lanes_per_host};
  const std::vector<NodeId> heads(view(head).begin(), view(head).end());
  std::vector<Time> propagations(propagation_s.size());
  std::ranges::transform(view(propagation_s), propagations.begin(), time_of);
  return std::make_unique<Simulation>(view(rate_bps), propagations, heads, view(is_switch), network, transport, seed);
}

/// The links of a row up to its first -1. Raises ValueError unless they lead from a host over switches, and over hosts
/// where hosts can relay, to a host.
std::vector<LinkId> route_of(const Network& network, std::span<const std::int32_t> row) {
  std::vector<LinkId> links;
  links.reserve(row.size());
  for (const auto link : row) {
    if (link < 0) break;
    check(static_cast<std::size_t>(link) < network.links(), "a route crosses a link that does not exist");
    const auto number = static_cast<LinkId>(link);
    const bool from_switch = network.from_switch(number);
    if (links.empty()) {
      check(!from_switch, "a route does not begin at a host");
    } else {
      check(network.head(links.back()) == network.head(number ^ 1U), "a link of a route does not begin where one ends");
      check(from_switch || network.can_relay(), "hosts relay only where switches neither choose, hold nor pause");
    }
    links.push_back(number);
  }
  check(!links.empty() && links.size() < 256 && !network.to_switch(links.back()), "a route does not end at a host");
  return links;
}

/// `back` has a row per channel, or is empty: acknowledgements then take the routes of their data backwards.
void add_channels(Simulation& simulation, const Array<std::int32_t>& rows, const Array<std::int64_t>& flowlet_bytes,
                  const Array<std::int32_t>& back) {
  check(rows.ndim() == 3 && rows.shape(0) == flowlet_bytes.size() && rows.shape(1) > 0 && rows.shape(2) > 0,
        "rows have dimensions for channels, lanes and links, and flowlet_bytes is one per channel");
  check(back.size() == 0 || (back.ndim() == 2 && back.shape(0) == rows.shape(0)),
        "back has dimensions for channels and links");
  check(std::ranges::all_of(view(flowlet_bytes), [](auto bytes) { return bytes > 0 && bytes < kMost; }),
        "flowlet_bytes is out of range");
  check(static_cast<std::int64_t>(simulation.routes().size()) + rows.shape(0) * rows.shape(1) < kMost,
        "there are too many lanes");
  check(simulation.routes().size() == simulation.transport().counted_routes(), "channels are added before lanes move");
  const auto& network = simulation.network();
  const auto lanes = static_cast<std::size_t>(rows.shape(1));
  const auto hops = static_cast<std::size_t>(rows.shape(2));
  const auto back_hops = back.size() == 0 ? 0 : static_cast<std::size_t>(back.shape(1));
  std::vector<std::vector<LinkId>> routes;
  std::vector<std::vector<LinkId>> backs;
  for (std::size_t channel = 0; channel < static_cast<std::size_t>(rows.shape(0)); ++channel) {
    backs.emplace_back();
    if (back_hops > 0) backs.back() = route_of(network, view(back).subspan(channel * back_hops, back_hops));
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      routes.push_back(route_of(network, view(rows).subspan((channel * lanes + lane) * hops, hops)));
      const auto& own = routes.back();
      check(own.front() == routes[channel * lanes].front(), "the lanes of a channel must leave by one NIC");
      check(back_hops == 0 || (network.head(own.back()) == network.head(backs.back().front() ^ 1U) &&
                               network.head(backs.back().back()) == network.head(own.front() ^ 1U)),
            "acknowledgements do not lead from the receiver to the sender");
    }
  }
  for (std::size_t channel = 0; channel < backs.size(); ++channel) {
    std::vector<std::uint32_t> numbers;
    numbers.reserve(lanes);
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      numbers.push_back(simulation.routes().add(routes[channel * lanes + lane], backs[channel]));
    }
    simulation.transport().add_channel(numbers, view(flowlet_bytes)[channel]);
  }
}

/// Lane `lanes[i]` takes the route `rows[i]` from now on.
void move_lanes(Simulation& simulation, const Array<std::int64_t>& lanes, const Array<std::int32_t>& rows) {
  check(rows.ndim() == 2 && rows.shape(0) == lanes.size(), "rows have dimensions for lanes and links");
  const auto& network = simulation.network();
  auto& routes = simulation.routes();
  check(network.hashed(), "lanes have routes of their own under scheme hashed only");
  check(static_cast<std::int64_t>(routes.size()) + rows.shape(0) < kMost, "lanes move too often");
  const auto known = static_cast<std::int64_t>(simulation.transport().counted_routes());
  const auto hops = static_cast<std::size_t>(rows.shape(1));
  std::vector<std::vector<LinkId>> found;
  for (std::size_t i = 0; i < view(lanes).size(); ++i) {
    check(view(lanes)[i] >= 0 && view(lanes)[i] < known, "a lane does not exist");
    const auto lane = static_cast<std::uint32_t>(view(lanes)[i]);
    found.push_back(route_of(network, view(rows).subspan(i * hops, hops)));
    const LinkId last = routes.link(lane, routes.length(lane) - 1U);
    check(found.back().front() == routes.link(lane, 0) && found.back().back() == last,
          "a lane leaves by another NIC or arrives at another one");
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    simulation.transport().move(static_cast<QpId>(view(lanes)[i]), routes.add(found[i]));
  }
}

/// `of` by switch and link, `begins` and `links` the groups one after the other.
void set_groups(Simulation& simulation, const Array<std::int32_t>& of, const Array<std::int64_t>& begins,
                const Array<std::int32_t>& links) {
  const auto known = static_cast<std::int64_t>(simulation.network().links());
  check(of.ndim() == 2 && of.shape(1) == known && of.shape(0) < static_cast<py::ssize_t>(simulation.network().nodes()),
        "of has dimensions for switches and links");
  const auto bounds = view(begins);
  check(!bounds.empty() && bounds.front() == 0 && bounds.back() == links.size() &&
            std::ranges::adjacent_find(bounds, std::ranges::greater_equal{}) == bounds.end(),
        "begins does not divide links into groups");
  const auto count = static_cast<std::int64_t>(bounds.size()) - 1;
  check(std::ranges::all_of(view(of), [&](auto group) { return group >= -1 && group < count; }),
        "a group does not exist");
  check(std::ranges::all_of(view(links), [&](auto link) { return link >= 0 && link < known; }),
        "a group has a link that does not exist");
  Network::Groups groups{.first_switch = simulation.network().nodes() - static_cast<std::size_t>(of.shape(0)),
                         .of = {view(of).begin(), view(of).end()}};
  for (std::size_t g = 0; g + 1 < bounds.size(); ++g) {
    groups.links.emplace_back(view(links).begin() + bounds[g], view(links).begin() + bounds[g + 1]);
  }
  simulation.network().set_groups(std::move(groups));
}

std::size_t add_messages(Simulation& simulation, const Array<std::int64_t>& channel, const Array<std::int64_t>& bytes,
                         const Array<double>& release_s, const Array<double>& pause_s, const Array<bool>& milestone) {
  check(channel.size() == bytes.size() && bytes.size() == release_s.size() && bytes.size() == pause_s.size() &&
            bytes.size() == milestone.size(),
        "the columns of messages differ in length");
  auto& transport = simulation.transport();
  const auto first = transport.messages();
  check(static_cast<std::int64_t>(first) + channel.size() < kMost, "there are too many messages");
  const auto known = static_cast<std::int64_t>(transport.channels());
  check(std::ranges::all_of(view(channel), [&](auto c) { return c >= -1 && c < known; }),
        "a message goes over a channel that does not exist");
  check(std::ranges::all_of(view(bytes), [](auto size) { return size >= 0 && size < kMost * 64; }),
        "the size of a message is out of range");
  for (const auto& times : {view(release_s), view(pause_s)}) {
    for (const double time : times) time_of(time);
  }
  for (std::size_t i = 0; i < view(channel).size(); ++i) {
    check(view(channel)[i] >= 0 || view(bytes)[i] == 0, "a message that goes over no channel has bytes");
  }
  for (std::size_t i = 0; i < view(channel).size(); ++i) {
    transport.add_message(static_cast<std::uint32_t>(view(channel)[i]), view(bytes)[i], time_of(view(release_s)[i]),
                          time_of(view(pause_s)[i]), view(milestone)[i]);
  }
  return first;
}

std::vector<MessageId> advance(Simulation& simulation, double until_s) {
  check(simulation.network().can_forward(), "the scheme lets switches choose, but set_groups was not called");
  const Time until = std::isinf(until_s) && until_s > 0 ? Simulation::kForever : time_of(until_s);
  const py::gil_scoped_release unlocked;
  simulation.advance(until);
  return simulation.transport().reached();
}

void set_conditions(Simulation& simulation, std::int64_t link, double propagation_s, std::int64_t mark_bytes,
                    double loss) {
  check(link >= 0 && static_cast<std::size_t>(link) < simulation.network().links(), "the link does not exist");
  check(mark_bytes >= 0, "mark_bytes is negative");
  check(loss >= 0 && loss <= 1, "the loss is not a probability");
  simulation.network().set_conditions(static_cast<LinkId>(link), {time_of(propagation_s), mark_bytes, loss});
}

Array<double> delivered_s(Simulation& simulation) {
  const auto& transport = simulation.transport();
  return column<double>(transport.messages(), [&](MessageId m) {
    return transport.delivered(m) < 0 ? std::nan("") : seconds_of(transport.delivered(m));
  });
}

py::dict link_counters(Simulation& simulation) {
  const auto& network = simulation.network();
  const auto of = [&](auto member) {
    return column<std::int64_t>(network.links(),
                                [&](LinkId l) { return static_cast<std::int64_t>(network.counters(l).*member); });
  };
  using C = Network::Counters;
  py::dict found;
  found["bytes"] = of(&C::bytes);
  found["packets"] = of(&C::packets);
  found["dropped"] = of(&C::dropped);
  found["marked"] = of(&C::marked);
  found["lost"] = of(&C::lost);
  found["pauses"] = of(&C::pauses);
  found["longest_bytes"] = of(&C::max_queued);
  return found;
}

py::dict route_counters(Simulation& simulation) {
  const auto& transport = simulation.transport();
  const auto of = [&](auto member) {
    return column<std::int64_t>(transport.counted_routes(), [&](std::uint32_t route) {
      return static_cast<std::int64_t>(transport.counters(route).*member);
    });
  };
  using C = Transport::Counters;
  py::dict found;
  found["bytes"] = of(&C::bytes);
  found["packets"] = of(&C::packets);
  found["flowlets"] = of(&C::flowlets);
  found["retransmits"] = of(&C::retransmits);
  found["timeouts"] = of(&C::timeouts);
  return found;
}

py::dict totals(Simulation& simulation) {
  const auto& counted = simulation.transport().totals();
  py::dict found;
  found["sent"] = counted.sent;
  found["arrived"] = counted.arrived;
  found["dropped"] = counted.dropped;
  found["out_of_order"] = counted.out_of_order;
  found["in_flight"] = simulation.network().in_flight();
  return found;
}

}  // namespace

void bind(py::module_& module) {
  py::class_<Simulation>(module, "PacketSimulation")
      .def(py::init(&make), py::kw_only(), py::arg("rate_bps"), py::arg("propagation_s"), py::arg("head"),
           py::arg("is_switch"), py::arg("switch_bytes"), py::arg("port_bytes"), py::arg("mark_bytes"),
           py::arg("pause"), py::arg("payload_bytes"), py::arg("header_bytes"), py::arg("ack_bytes"),
           py::arg("receiver"), py::arg("dctcp"), py::arg("window_bdp"), py::arg("timeout_rtts"), py::arg("scheme"),
           py::arg("flowlet_gap_s"), py::arg("hold_s"), py::arg("reroute_rtts"), py::arg("lanes_per_host"),
           py::arg("seed"))
      .def("set_groups", &set_groups, py::arg("of"), py::arg("begins"), py::arg("links"))
      .def("set_conditions", &set_conditions, py::arg("link"), py::arg("propagation_s"), py::arg("mark_bytes"),
           py::arg("loss"))
      .def("add_channels", &add_channels, py::arg("rows"), py::arg("flowlet_bytes"), py::arg("back"))
      .def("add_messages", &add_messages, py::arg("channel"), py::arg("bytes"), py::arg("release_s"),
           py::arg("pause_s"), py::arg("milestone"))
      .def("move_lanes", &move_lanes, py::arg("lanes"), py::arg("rows"))
      .def(
          "add_waits",
          [](Simulation& s, const Array<std::int64_t>& earlier, const Array<std::int64_t>& later) {
            add_waits(s.transport().waits(), earlier, later);
          },
          py::arg("earlier"), py::arg("later"))
      .def("advance", &advance, py::arg("until_s"))
      .def("delivered_s", &delivered_s)
      .def("link_counters", &link_counters)
      .def("route_counters", &route_counters)
      .def("totals", &totals)
      .def_property_readonly("now_s", [](const Simulation& s) { return seconds_of(s.now()); })
      .def_property_readonly("undelivered", [](Simulation& s) { return s.transport().undelivered(); })
      .def_property_readonly("events", &Simulation::events);
}

}  // namespace paralet::packet
