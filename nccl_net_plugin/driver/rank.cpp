// SPDX-License-Identifier: Apache-2.0
#include "rank.hpp"

#include <cstdlib>
#include <istream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <thread>

#include "all_reduce.hpp"
#include "ping_pong.hpp"
#include "truth.hpp"

namespace paralet::driver {
namespace {

using Json = nlohmann::json;

void say(std::ostream& reports, const Json& report) { reports << report.dump() << '\n' << std::flush; }

/// The next order, which must be `op`.
Json hear(std::istream& orders, const char* op) {
  std::string line;
  if (!std::getline(orders, line)) throw NetError(std::string("the orders ended before '") + op + "'");
  Json order = Json::parse(line, nullptr, false);
  if (!order.is_object() || order.value("op", "") != op) {
    throw NetError("'" + line + "' came where an order to '" + op + "' was due");
  }
  return order;
}

Handles read_handles(const Json& texts) {
  Handles handles;
  for (const auto& [peer, text] : texts.items())
    handles[static_cast<unsigned>(std::stoul(peer))] = text.get<std::string>();
  return handles;
}

Json keyed(const Handles& handles) {
  Json object = Json::object();
  for (const auto& [peer, text] : handles) object[std::to_string(peer)] = text;
  return object;
}

std::unique_ptr<Net> open(const Options& options) {
  if (options.transport == "tcp") return tcp_net(options.address.empty() ? "127.0.0.1" : options.address);
  // Our plugin's way to say it; others have theirs, in the environment too.
  if (!options.address.empty()) ::setenv("PARALET_ADDRESSES", options.address.c_str(), 1);
  return load_plugin(options.transport, options.abi, options.device);
}

SlotOptions slots(const Options& options) {
  const std::uint64_t message = options.collective == Collective::kPingPong ? options.bytes : options.slice_bytes;
  return {std::max(message, options.warm_up_bytes), options.steps};
}

/// The buffers of an all-reduce. Two inputs in turn: what an iteration forgot to write is then wrong, not last time's.
struct Buffers {
  std::vector<std::vector<float>> inputs;
  std::vector<float> output;

  explicit Buffers(const Options& options)
      : inputs(std::min(options.iterations, 2U), std::vector<float>(options.bytes / sizeof(float))),
        output(options.bytes / sizeof(float), std::numeric_limits<float>::quiet_NaN()) {
    for (unsigned set = 0; set < inputs.size(); ++set) fill(inputs[set], options.seed, set, options.rank);
  }
  [[nodiscard]] Job job(unsigned iterations) {
    Job made{.inputs = {}, .output = output, .iterations = iterations};
    made.inputs.assign(inputs.begin(), inputs.end());
    return made;
  }
};

Json all_reduce(const Options& options, Buffers& buffers, Links& links, Nanos start, Patience patience) {
  const auto run = options.collective == Collective::kRing ? ring_all_reduce : tree_all_reduce;
  const Timings timings = run(links, options.rank, options.extent(), buffers.job(options.iterations), patience);
  const Nanos end = now();
  Json steps = Json::array();
  Nanos latest = start;
  for (const Nanos finished : timings.step_finished) {
    latest = std::max(latest, finished);
    steps.push_back(to_seconds(latest));
  }
  Json arrivals = Json::object();
  for (const auto& [peer, moment] : timings.last_arrival) arrivals[std::to_string(peer)] = to_seconds(moment);
  const auto last_set = static_cast<unsigned>((options.iterations - 1) % buffers.inputs.size());
  return {{"finished_s", to_seconds(end)},
          {"step_finished_s", steps},
          {"last_arrival_s", arrivals},
          {"seconds", to_seconds(end - start) / options.iterations},
          {"wrong_bytes", wrong_bytes(buffers.output, options.seed, last_set, options.ranks)}};
}

/// Of the warm-up too.
std::uint64_t messages_sent(const Links& links) {
  std::uint64_t messages = 0;
  for (const auto& [edge, link] : links.outgoing) messages += link->done();
  return messages;
}

Json play(const Options& options, Links& links, Patience patience) {
  const PingPong result = ping_pong(links, options.rank, options.bytes, options.iterations, patience);
  return {{"seconds", to_seconds(result.half_round_trip)}, {"wrong_bytes", result.wrong_bytes}};
}

}  // namespace

void run_rank(const Options& options, std::istream& orders, std::ostream& reports) {
  const bool reduces = options.collective != Collective::kPingPong;
  const auto net = open(options);
  std::optional<Buffers> buffers;
  if (reduces) buffers.emplace(options);
  Rendezvous rendezvous(*net, options.rank, edges_of(options.collective, options.rank, options.ranks));
  say(reports, {{"event", "prepared"}, {"handles", keyed(rendezvous.handles())}});

  const Json connect = hear(orders, "connect");
  const auto patience_of = [](const Json& order, Idle idle) {
    return Patience(order.at("timeout_s").get<double>(), idle);
  };
  const Patience connecting = patience_of(connect, Idle::kNap);
  Links links = rendezvous.connect(read_handles(connect.at("handles")), slots(options), connecting);
  warm_up(links, options.warm_up_bytes, connecting);
  say(reports, {{"event", "connected"}, {"messages_sent", messages_sent(links)}});

  const Json start = hear(orders, "start");
  const Nanos at = from_seconds(start.at("at_s").get<double>());
  std::this_thread::sleep_until(std::chrono::steady_clock::time_point(std::chrono::nanoseconds(at)));
  const Patience patience = patience_of(start, options.idle);
  Json finished =
      reduces ? all_reduce(options, *buffers, links, std::max(at, Nanos{0}), patience) : play(options, links, patience);
  finished.update({{"event", "finished"},
                   {"rank", options.rank},
                   {"transport", net->name()},
                   {"bytes", options.bytes},
                   {"iterations", options.iterations},
                   {"messages_sent", messages_sent(links)},
                   {"verified", finished.at("wrong_bytes") == 0}});
  say(reports, finished);

  hear(orders, "close");
  links = {};
  say(reports, {{"event", "closed"}});
}

}  // namespace paralet::driver
