// SPDX-License-Identifier: Apache-2.0
#include "rank.hpp"

#include <cstdlib>
#include <istream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <thread>

#include "all_reduce.hpp"
#include "expected_data.hpp"
#include "ping_pong.hpp"

namespace paralet::driver {
namespace {

using Json = nlohmann::json;

void write_event(std::ostream& events, const Json& event) { events << event.dump() << '\n' << std::flush; }

/// Reads the next command, which must be `op`.
Json read_command(std::istream& commands, const char* op) {
  std::string line;
  if (!std::getline(commands, line)) {
    throw NetError(std::string("standard input ended where the command '") + op + "' was expected");
  }
  Json command = Json::parse(line, nullptr, false);
  if (!command.is_object() || command.value("op", "") != op) {
    throw NetError(std::string("expected the command '") + op + "', got '" + line + "'");
  }
  return command;
}

Handles read_handles(const Json& texts) {
  Handles handles;
  for (const auto& [peer, text] : texts.items())
    handles[static_cast<unsigned>(std::stoul(peer))] = text.get<std::string>();
  return handles;
}

Json to_json(const Handles& handles) {
  Json object = Json::object();
  for (const auto& [peer, text] : handles) object[std::to_string(peer)] = text;
  return object;
}

std::unique_ptr<Net> open(const Options& options) {
  if (options.transport == "tcp") return tcp_net(options.address.empty() ? "127.0.0.1" : options.address);
  // The variable of this project's plugin. Other plugins read theirs from the environment.
  if (!options.address.empty()) ::setenv("PARALET_ADDRESSES", options.address.c_str(), 1);
  return load_plugin(options.transport, options.abi, options.device);
}

SlotOptions slots(const Options& options) {
  const std::uint64_t message = options.collective == Collective::kPingPong ? options.bytes : options.slice_bytes;
  return {std::max(message, options.warm_up_bytes), options.steps};
}

/// The buffers of an all-reduce. Iterations alternate between two inputs, so a result that an iteration did not write
/// is wrong instead of equal to the previous one.
struct Buffers {
  std::vector<std::vector<float>> inputs;
  std::vector<float> output;

  explicit Buffers(const Options& options)
      : inputs(std::min(options.iterations, 2U), std::vector<float>(options.bytes / sizeof(float))),
        output(options.bytes / sizeof(float), std::numeric_limits<float>::quiet_NaN()) {
    for (unsigned set = 0; set < inputs.size(); ++set) fill_input(inputs[set], options.seed, set, options.rank);
  }
  [[nodiscard]] Job job(unsigned iterations) {
    Job made{.inputs = {}, .output = output, .iterations = iterations};
    made.inputs.assign(inputs.begin(), inputs.end());
    return made;
  }
};

Json all_reduce(const Options& options, Buffers& buffers, Links& links, Nanos start, PollDeadline deadline) {
  const auto run = options.collective == Collective::kRing ? ring_all_reduce : tree_all_reduce;
  const Timings timings = run(links, options.rank, options.extent(), buffers.job(options.iterations), deadline);
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
          {"wrong_bytes", count_wrong_bytes(buffers.output, options.seed, last_set, options.ranks)}};
}

/// Includes those of the warm-up.
std::uint64_t messages_sent(const Links& links) {
  std::uint64_t messages = 0;
  for (const auto& [edge, link] : links.outgoing) messages += link->done();
  return messages;
}

Json run_ping_pong(const Options& options, Links& links, PollDeadline deadline) {
  const PingPong result = ping_pong(links, options.rank, options.bytes, options.iterations, deadline);
  return {{"seconds", to_seconds(result.half_round_trip)}, {"wrong_bytes", result.wrong_bytes}};
}

}  // namespace

void run_rank(const Options& options, std::istream& commands, std::ostream& events) {
  const bool is_all_reduce = options.collective != Collective::kPingPong;
  const auto net = open(options);
  std::optional<Buffers> buffers;
  if (is_all_reduce) buffers.emplace(options);
  Rendezvous rendezvous(*net, options.rank, edges_of(options.collective, options.rank, options.ranks));
  write_event(events, {{"event", "prepared"}, {"handles", to_json(rendezvous.handles())}});

  const Json connect = read_command(commands, "connect");
  const auto deadline_of = [](const Json& command, Idle idle) {
    return PollDeadline(command.at("timeout_s").get<double>(), idle);
  };
  const PollDeadline connecting = deadline_of(connect, Idle::kNap);
  Links links = rendezvous.connect(read_handles(connect.at("handles")), slots(options), connecting);
  warm_up(links, options.warm_up_bytes, connecting);
  write_event(events, {{"event", "connected"}, {"messages_sent", messages_sent(links)}});

  const Json start = read_command(commands, "start");
  const Nanos start_at = from_seconds(start.at("at_s").get<double>());
  std::this_thread::sleep_until(std::chrono::steady_clock::time_point(std::chrono::nanoseconds(start_at)));
  const PollDeadline deadline = deadline_of(start, options.idle);
  Json finished = is_all_reduce ? all_reduce(options, *buffers, links, std::max(start_at, Nanos{0}), deadline)
                                : run_ping_pong(options, links, deadline);
  finished.update({{"event", "finished"},
                   {"rank", options.rank},
                   {"transport", net->name()},
                   {"bytes", options.bytes},
                   {"iterations", options.iterations},
                   {"messages_sent", messages_sent(links)},
                   {"verified", finished.at("wrong_bytes") == 0}});
  write_event(events, finished);

  read_command(commands, "close");
  links = {};
  write_event(events, {{"event", "closed"}});
}

}  // namespace paralet::driver
