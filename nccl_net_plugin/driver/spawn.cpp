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

constexpr Nanos kStartDelay = 20 * kMillisecond;  ///< all ranks have their order by then
constexpr Nanos kGrace = 5 * kSecond;             ///< beyond a rank's own limit, so that its more precise error wins

void check(bool ok, const char* what) {
  if (!ok) throw NetError(std::string(what) + ": " + std::strerror(errno));
}

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
  Pipe() {
    int ends[2];
    check(::pipe2(ends, O_CLOEXEC) == 0, "pipe");
    read = FileDescriptor(ends[0]);
    write = FileDescriptor(ends[1]);
  }
};

/// A rank's process; killed, if it still runs, at the end.
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
    check(pid_ >= 0, "fork");
    if (pid_ == 0) {
      ::dup2(in.read.get(), STDIN_FILENO);
      ::dup2(out.write.get(), STDOUT_FILENO);
      ::execv(program.c_str(), argv.data());
      ::_exit(127);
    }
    orders_ = std::move(in.write);
    reports_ = std::move(out.read);
  }
  Process(Process&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        orders_(std::move(other.orders_)),
        reports_(std::move(other.reports_)),
        unread_(std::move(other.unread_)) {}
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  Process& operator=(Process&&) = delete;
  ~Process() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  void tell(const Json& order) {
    const std::string line = order.dump() + "\n";
    check(::write(orders_.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size()), "write to a rank");
  }
  [[nodiscard]] int reports() const { return reports_.get(); }
  /// Reads what has come; a whole line, if there is one now. Throws when the process has ended.
  std::optional<std::string> line() {
    std::array<char, 65536> buffer;
    const ssize_t n = ::read(reports_.get(), buffer.data(), buffer.size());
    if (n <= 0) throw NetError("ended early, " + ending());
    unread_.append(buffer.data(), static_cast<std::size_t>(n));
    const std::size_t end = unread_.find('\n');
    if (end == std::string::npos) return std::nullopt;
    std::string found = unread_.substr(0, end);
    unread_.erase(0, end + 1);
    return found;
  }
  void wait() {
    orders_.reset();
    ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

 private:
  /// How it ended, which it has.
  std::string ending() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    if (WIFSIGNALED(status)) return "by signal " + std::to_string(WTERMSIG(status));
    return "with status " + std::to_string(WEXITSTATUS(status));
  }

  pid_t pid_ = -1;
  FileDescriptor orders_;
  FileDescriptor reports_;
  std::string unread_;
};

/// This program's own file: a rank then has its name in lists of processes.
std::string own_path() {
  std::array<char, 4096> path;
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  check(length > 0, "/proc/self/exe");
  return {path.data(), static_cast<std::size_t>(length)};
}

class Ranks {
 public:
  Ranks(const Options& options, int argc, char** argv) {
    const std::string program = own_path();
    for (unsigned rank = 0; rank < options.spawn; ++rank) {
      // Later options win: the last ones are this rank's own.
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

  /// One report of each.
  std::vector<Json> hear(const char* event, Nanos limit) {
    std::vector<Json> heard(processes_.size());
    const Nanos deadline = now() + limit;
    for (std::size_t missing = processes_.size(); missing > 0;) {
      std::vector<pollfd> fds;
      for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
        fds.push_back({heard[rank].is_null() ? processes_[rank].reports() : -1, POLLIN, 0});
      }
      const Nanos left = deadline - now();
      if (left <= 0) throw NetError(std::string("not every rank was ") + event + " in time");
      ::poll(fds.data(), fds.size(), static_cast<int>(left / kMillisecond) + 1);
      for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
        if (fds[rank].revents == 0) continue;
        heard[rank] = report(rank, event);
        missing -= heard[rank].is_null() ? 0 : 1;
      }
    }
    return heard;
  }

  void tell_all(const Json& order) {
    for (Process& process : processes_) process.tell(order);
  }

  void wait() {
    for (Process& process : processes_) process.wait();
  }

 private:
  /// Null: not yet.
  Json report(std::size_t rank, const char* event) {
    const std::string who = "rank " + std::to_string(rank) + " ";
    try {
      const auto line = processes_[rank].line();
      if (!line) return {};
      Json report = Json::parse(*line, nullptr, false);
      const std::string said = report.is_object() ? report.value("event", "") : "";
      if (said == "failed") throw NetError("failed: " + report.value("error", ""));
      if (said != event) throw NetError("said '" + *line + "' where '" + event + "' was due");
      return report;
    } catch (const NetError& error) {
      throw NetError(who + error.what());
    }
  }

  std::vector<Process> processes_;
};

/// NCCL's measure: what the links carry, which makes different numbers of ranks comparable.
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
  const std::vector<Json> prepared = ranks.hear("prepared", limit);
  for (unsigned rank = 0; rank < options.ranks; ++rank) {
    for (const auto& [peer, text] : prepared[rank].at("handles").items()) {
      handles[std::stoul(peer)][std::to_string(rank)] = text;
    }
  }
  for (unsigned rank = 0; rank < options.ranks; ++rank) {
    ranks[rank].tell({{"op", "connect"}, {"handles", handles[rank]}, {"timeout_s", options.timeout_s}});
  }
  ranks.hear("connected", limit + kGrace);
  ranks.tell_all({{"op", "start"}, {"at_s", to_seconds(now() + kStartDelay)}, {"timeout_s", options.timeout_s}});
  // Checking the result takes time beyond the limit.
  const std::vector<Json> finished = ranks.hear("finished", 2 * limit + kGrace);
  ranks.tell_all({{"op", "close"}});
  ranks.hear("closed", limit);
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
