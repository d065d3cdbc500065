// SPDX-License-Identifier: Apache-2.0
#include "spawn.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <ostream>

#include "base/file_descriptor.hpp"

namespace paralet::driver {
namespace {

using Json = nlohmann::json;

constexpr Nanos kStartDelay = 20 * kMillisecond;  ///< until all ranks have read the command
constexpr Nanos kGrace = 5 * kSecond;  ///< beyond a rank's own deadline, so that its more precise error is reported
constexpr Nanos kCauseTime = 10 * kSecond;  ///< for the cause, after a rank has failed only because it lost a peer

void require(bool ok, const char* what) {
  if (!ok) throw NetError(std::string(what) + ": " + std::strerror(errno));
}

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
  Pipe() {
    int ends[2];
    require(::pipe2(ends, O_CLOEXEC) == 0, "pipe");
    read = FileDescriptor(ends[0]);
    write = FileDescriptor(ends[1]);
  }
};

/// The process of a rank. The destructor kills it if it still runs.
class Process {
 public:
  Process(const std::string& program, std::vector<std::string> arguments) {
    Pipe in;
    Pipe out;
    std::vector<char*> argv;
    argv.reserve(arguments.size() + 1);
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    require(pid_ >= 0, "fork");
    if (pid_ == 0) {
      ::dup2(in.read.get(), STDIN_FILENO);
      ::dup2(out.write.get(), STDOUT_FILENO);
      ::execv(program.c_str(), argv.data());
      ::_exit(127);
    }
    commands_ = std::move(in.write);
    events_ = std::move(out.read);
  }
  Process(Process&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        commands_(std::move(other.commands_)),
        events_(std::move(other.events_)),
        unread_(std::move(other.unread_)) {}
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  Process& operator=(Process&&) = delete;
  ~Process() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  void send(const Json& command) {
    const std::string line = command.dump() + "\n";
    require(::write(commands_.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size()), "write to a rank");
  }
  [[nodiscard]] int event_fd() const { return events_.get(); }
  /// Reads available output. Returns a line once it is complete. Throws NetError, which names the process `who`, when
  /// it has ended.
  std::optional<std::string> read_line(const std::string& who) {
    std::array<char, 65536> buffer;
    const ssize_t n = ::read(events_.get(), buffer.data(), buffer.size());
    if (n <= 0) throw NetError(who + "exited early, " + exit_status());
    unread_.append(buffer.data(), static_cast<std::size_t>(n));
    const std::size_t end = unread_.find('\n');
    if (end == std::string::npos) return std::nullopt;
    std::string found = unread_.substr(0, end);
    unread_.erase(0, end + 1);
    return found;
  }
  void wait() {
    commands_.reset();
    ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

 private:
  /// How the process ended. Only after its end.
  std::string exit_status() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    if (WIFSIGNALED(status)) return "by signal " + std::to_string(WTERMSIG(status));
    return "with status " + std::to_string(WEXITSTATUS(status));
  }

  pid_t pid_ = -1;
  FileDescriptor commands_;
  FileDescriptor events_;
  std::string unread_;
};

/// This program's file, so that ranks show its name in process lists.
std::string own_path() {
  std::array<char, 4096> path;
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  require(length > 0, "/proc/self/exe");
  return {path.data(), static_cast<std::size_t>(length)};
}

class Ranks {
 public:
  Ranks(const Options& options, int argc, char** argv) {
    const std::string program = own_path();
    for (unsigned rank = 0; rank < options.spawn; ++rank) {
      // The last value of an option counts, so the rank's own options follow.
      std::vector<std::string> arguments(argv, argv + argc);
      for (const auto& [name, value] : {std::pair<std::string, std::string>{"--spawn", "0"},
                                        {"--ranks", std::to_string(options.spawn)},
                                        {"--rank", std::to_string(rank)},
                                        {"--address", "127.0.0." + std::to_string(rank + 1)}}) {
        arguments.push_back(name);
        arguments.push_back(value);
      }
      processes_.emplace_back(program, std::move(arguments));
    }
  }

  Process& operator[](unsigned rank) { return processes_[rank]; }

  /// Waits for the event from every rank. Throws NetError when a rank fails. Ranks that only lost their peers leave the
  /// others kCauseTime to report the cause.
  std::vector<Json> wait_for_event(const char* event, Nanos limit) {
    std::vector<Json> received(processes_.size());
    std::vector<bool> gone(processes_.size());
    std::optional<PeerLost> first_lost;
    Nanos deadline = now() + limit;
    for (std::size_t missing = processes_.size(); missing > 0;) {
      std::vector<pollfd> fds;
      for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
        const bool awaited = received[rank].is_null() && !gone[rank];
        fds.push_back({awaited ? processes_[rank].event_fd() : -1, POLLIN, 0});
      }
      const Nanos left = deadline - now();
      if (left <= 0 && first_lost) break;
      if (left <= 0) throw NetError(std::string("not all ranks reported '") + event + "' in time");
      ::poll(fds.data(), fds.size(), static_cast<int>(left / kMillisecond) + 1);
      for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
        if (fds[rank].revents == 0) continue;
        try {
          received[rank] = read_event(rank, event);
        } catch (const PeerLost& lost) {
          gone[rank] = true;
          if (!first_lost) deadline = now() + kCauseTime;
          if (!first_lost) first_lost = lost;
        }
        missing -= received[rank].is_null() && !gone[rank] ? 0 : 1;
      }
    }
    if (first_lost) throw PeerLost(first_lost->what());
    return received;
  }

  void send_all(const Json& command) {
    for (Process& process : processes_) process.send(command);
  }

  void wait() {
    for (Process& process : processes_) process.wait();
  }

 private:
  /// Null: not yet complete.
  Json read_event(std::size_t rank, const char* event) {
    const std::string who = "rank " + std::to_string(rank) + " ";
    const auto line = processes_[rank].read_line(who);
    if (!line) return {};
    Json report = Json::parse(*line, nullptr, false);
    const std::string name = report.is_object() ? report.value("event", "") : "";
    if (name == "failed") {
      const std::string sentence = who + "failed: " + report.value("error", "");
      if (report.value("peer_lost", false)) throw PeerLost(sentence);
      throw NetError(sentence);
    }
    if (name != event) throw NetError(who + "should have reported '" + event + "' but wrote '" + *line + "'");
    return report;
  }

  std::vector<Process> processes_;
};

/// Bus bandwidth as nccl-tests defines it: comparable between numbers of ranks.
double bus_gbps(const Options& options, double seconds) {
  const double n = options.ranks;
  return 2 * (n - 1) / n * static_cast<double>(options.bytes) * 8 / seconds / 1e9;
}

}  // namespace

bool spawn_ranks(const Options& options, int argc, char** argv, std::ostream& out) {
  std::signal(SIGPIPE, SIG_IGN);
  Ranks ranks(options, argc, argv);
  const Nanos limit = from_seconds(options.timeout_s);
  std::vector<Json> handles(options.ranks, Json::object());  // by the rank that connects
  const std::vector<Json> prepared = ranks.wait_for_event("prepared", limit);
  for (unsigned rank = 0; rank < options.ranks; ++rank) {
    for (const auto& [peer, text] : prepared[rank].at("handles").items()) {
      handles[std::stoul(peer)][std::to_string(rank)] = text;
    }
  }
  for (unsigned rank = 0; rank < options.ranks; ++rank) {
    ranks[rank].send({{"op", "connect"}, {"handles", handles[rank]}, {"timeout_s", options.timeout_s}});
  }
  ranks.wait_for_event("connected", limit + kGrace);
  ranks.send_all({{"op", "start"}, {"at_s", to_seconds(now() + kStartDelay)}, {"timeout_s", options.timeout_s}});
  // Each rank also checks its result, outside its deadline.
  const std::vector<Json> finished = ranks.wait_for_event("finished", 2 * limit + kGrace);
  ranks.send_all({{"op", "close"}});
  ranks.wait_for_event("closed", limit);
  ranks.wait();

  double seconds = 0;
  std::uint64_t wrong = 0;
  for (const Json& report : finished) {
    seconds = std::max(seconds, report.at("seconds").get<double>());
    wrong += report.at("wrong_bytes").get<std::uint64_t>();
  }
  Json summary = {{"collective", name_of(options.collective)},
                  {"transport", finished[0].at("transport")},
                  {"ranks", options.ranks},
                  {"bytes", options.bytes},
                  {"iterations", options.iterations},
                  {"seconds", seconds},
                  {"wrong_bytes", wrong},
                  {"verified", wrong == 0}};
  if (options.collective != Collective::kPingPong) {
    summary["slice_bytes"] = options.slice_bytes;
    summary["steps"] = options.steps;
    summary["bus_gbps"] = bus_gbps(options, seconds);
  }
  out << summary.dump() << '\n';
  return wrong == 0;
}

}  // namespace paralet::driver
