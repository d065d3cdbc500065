// SPDX-License-Identifier: Apache-2.0
#include "agent.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "base/errors.hpp"
#include "report.hpp"

namespace paralet::pin {
namespace {

constexpr int kBacklog = 1024;
// Of what is waited for, after the listener, the path clients, signals and routes.
constexpr std::size_t kFirstProcess = 4;
constexpr Nanos kSlowWriter = 10 * kSecond;
constexpr time_t kSlowReader = 1;  // seconds

FileDescriptor listen_at(const std::string& path) {
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof at.sun_path) {
    throw std::system_error(ENAMETOOLONG, std::generic_category(), path);
  }
  std::memcpy(at.sun_path, path.data(), path.size());
  FileDescriptor made(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const mode_t mask = ::umask(0077);  // of this user alone
  const bool bound = made.valid() && ::bind(made.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0;
  const int why = errno;
  ::umask(mask);
  if (!bound || ::listen(made.get(), kBacklog) != 0) {
    throw std::system_error(bound ? errno : why, std::generic_category(), path);
  }
  return made;
}

Connection connection_of(const Course& course, std::uint16_t port) {
  return {.local = course.local, .port = port, .remote = course.remote, .remote_port = course.remote_port};
}

/// Flows whose sockets the kernel is asked for.
struct SoughtFlows {
  std::vector<KnownFlow*> flows;
  std::vector<Sought> connections;

  void add(KnownFlow& flow) {
    flows.push_back(&flow);
    connections.push_back({.connection = connection_of(flow.course, flow.port), .may_retry = flow.may_retry});
  }
};

std::string seconds(Nanos time) {
  const Nanos tenths = time / (100 * kMillisecond);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

FileDescriptor open_process(pid_t pid) { return FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

}  // namespace

Agent::Agent(AgentOptions options)
    : options_(std::move(options)),
      listener_(listen_at(options_.socket_path)),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      user_(::geteuid()) {
  if (!options_.path_service.service.empty()) {
    service_.emplace(options_.path_service, [fd = wake_.get()] {
      const std::uint64_t one = 1;
      [[maybe_unused]] const ssize_t written = ::write(fd, &one, sizeof one);
    });
  }
  if (options_.program != 0) process(options_.program);
}

Agent::~Agent() {
  ::unlink(options_.socket_path.c_str());
  // `paralet pin` makes a folder for each agent.
  if (options_.program != 0) ::rmdir(std::filesystem::path(options_.socket_path).parent_path().c_str());
}

Agent::Process* Agent::process(pid_t pid) {
  const auto found = processes_.find(pid);
  if (found != processes_.end()) return &found->second;
  if (processes_.size() >= kMostProcesses) return nullptr;
  FileDescriptor handle = open_process(pid);
  if (!handle.valid()) return nullptr;
  return &processes_.try_emplace(pid, Process{.handle = std::move(handle), .moves = {}}).first->second;
}

void Agent::run(int signals) {
  if (service_ && options_.connects_ahead) service_->connect(options_.addresses);
  if (service_ && options_.member) service_->join(*options_.member, options_.addresses);
  for (;;) {
    std::vector<pollfd> waited{{.fd = listener_.get(), .events = POLLIN, .revents = 0},
                               {.fd = wake_.get(), .events = POLLIN, .revents = 0},
                               {.fd = signals, .events = POLLIN, .revents = 0},
                               {.fd = routes_.changes(), .events = POLLIN, .revents = 0}};
    std::vector<pid_t> pids;
    for (const auto& [pid, process] : processes_) {
      pids.push_back(pid);
      waited.push_back({.fd = process.handle.get(), .events = POLLIN, .revents = 0});
    }
    for (const auto& [program, until] : arrived_) {
      waited.push_back({.fd = program.get(), .events = POLLIN, .revents = 0});
    }
    const Nanos rest = std::clamp<Nanos>(deadline(now()) - now(), 0, kSecond);
    const timespec timeout{.tv_sec = rest / kSecond, .tv_nsec = rest % kSecond};
    if (::ppoll(waited.data(), waited.size(), &timeout, nullptr) < 0) continue;
    if (waited[2].revents != 0) return;
    if (waited[1].revents != 0) {
      std::uint64_t ignored = 0;
      [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &ignored, sizeof ignored);
    }
    if (waited[3].revents != 0) routes_.forget();
    const Nanos t = now();
    processor_.leave(t);
    serve(t);
    if (waited[0].revents != 0) accept(t);
    if (service_) follow_plan();
    settle(t);
    if (t >= sampled_at_ + kSampleEvery && !flows_.all().empty()) sample(t);
    for (std::size_t number = 0; number < pids.size(); ++number) {
      if (waited[kFirstProcess + number].revents != 0) forget(pids[number]);
    }
    tell_service();
    if (options_.program != 0 && processes_.empty()) return;
  }
}

Nanos Agent::deadline(Nanos now) const {
  Nanos due = flows_.all().empty() ? kNever : std::max(sampled_at_ + kSampleEvery, now);
  due = std::min(due, processor_.due());
  for (const auto& [program, until] : arrived_) due = std::min(due, until);
  for (const Waiting& waiting : waiting_) due = std::min(due, waiting.until);
  // Nobody tells when the service has been away for long enough.
  if (service_ && !waiting_.empty()) due = std::min(due, now + ServicePorts::kPatience / 4);
  return due;
}

// -- requests -------------------------------------------------------------------------------------------------------

void Agent::accept(Nanos now) {
  for (int count = 0; count < kBacklog && arrived_.size() < std::size_t{kBacklog}; ++count) {
    FileDescriptor program(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!program.valid()) return;
    // A program may be interrupted between its connect and its request.
    if (!served(program)) arrived_.emplace_back(std::move(program), now + kSlowWriter);
  }
}

void Agent::serve(Nanos now) {
  std::vector<std::pair<FileDescriptor, Nanos>> later;
  for (auto& [program, until] : std::exchange(arrived_, {})) {
    if (!served(program) && now < until) later.emplace_back(std::move(program), until);
  }
  arrived_ = std::move(later);
}

bool Agent::served(FileDescriptor& program) {
  Request request;
  const ssize_t got = ::recv(program.get(), &request, sizeof request, MSG_DONTWAIT);
  if (got < 0 && errno == EAGAIN) return false;
  if (got == sizeof request && request.magic == kMagic) serve(std::move(program), request);
  gone_.clear();
  return true;
}

void Agent::serve(FileDescriptor program, const Request& request) {
  ucred who{};
  socklen_t length = sizeof who;
  if (::getsockopt(program.get(), SOL_SOCKET, SO_PEERCRED, &who, &length) != 0) return;
  if (who.uid != user_ && who.uid != 0) return;
  const Nanos t = now();
  const std::string what(view(request.what));
  KnownFlow* flow = flows_.find(request.id);
  if (flow != nullptr && flow->pid != who.pid) flow = nullptr;
  switch (request.kind) {
    case RequestKind::kAsk:
      ask(std::move(program), request, who.pid, t);
      return;
    case RequestKind::kAskAgain:
      if (flow == nullptr || !flows_.next_slot(request.id, t)) {
        reply(program, nullptr, false);
        return;
      }
      wait_for_answer(std::move(program), request.id, request.wait, t);
      return;
    case RequestKind::kGiveBack:
      if (flow != nullptr) flows_.end(request.id);
      return;
    case RequestKind::kTried:
      if (flow == nullptr) return;
      flow->tried = true;
      // Its program says so after `connect`, when the kernel may have been asked already.
      flow->may_retry = !flow->came;
      return;
    case RequestKind::kSent:
      if (flow != nullptr) flows_.sent(request.id, request.bytes, t);
      return;
    case RequestKind::kNotPinned:
      flows_.not_pinned({.pid = who.pid,
                         .course = {.tcp = request.tcp != 0,
                                    .local = request.local,
                                    .remote = request.remote,
                                    .remote_port = request.remote_port},
                         .what = what,
                         .why = std::string(view(request.why))});
      return;
    case RequestKind::kMoves: {
      if (flow != nullptr) {
        flow->port = static_cast<std::uint16_t>(request.moved_to);
        flow->path.clear();  // of its port before; the plan may have another one by now
        note_path(*flow);
      }
      Process* asking = process(who.pid);
      Reply moved;
      if (asking != nullptr && !asking->moves.empty()) {
        moved.id = asking->moves.front().first;
        moved.port = asking->moves.front().second;
      }
      const bool sent = ::send(program.get(), &moved, sizeof moved, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof moved;
      if (sent && moved.id != 0) asking->moves.pop_front();
      return;
    }
    case RequestKind::kCheck: {
      const timeval second{.tv_sec = kSlowReader, .tv_usec = 0};
      ::setsockopt(program.get(), SOL_SOCKET, SO_SNDTIMEO, &second, sizeof second);
      const std::string text = report();
      ::send(program.get(), text.data(), text.size(), MSG_NOSIGNAL);
      return;
    }
  }
}

void Agent::ask(FileDescriptor program, const Request& request, pid_t pid, Nanos now) {
  ++asked_;
  // A path service answers later, and its clients are threads, which would stay on that processor, too.
  if (!service_) processor_.asked(static_cast<int>(request.processor), now);
  Course course{
      .tcp = request.tcp != 0, .local = request.local, .remote = request.remote, .remote_port = request.remote_port};
  const std::string what(view(request.what));
  if (course.local == IpAddress()) course.local = routes_.source(course.remote).value_or(IpAddress());
  // Nobody tells the end of a process that is gone already, so its flow would stay.
  Process* const asking = process(pid);
  if (asking == nullptr && ::kill(pid, 0) != 0 && errno == ESRCH) return;
  note_member(asking, pid);  // also where it connects to itself, as rank 0 of torch does to the store
  const auto& own = options_.addresses;
  const auto is_own = [&](const IpAddress& address) { return std::find(own.begin(), own.end(), address) != own.end(); };
  // What leaves by other interfaces, or not at all, is none of the fabric's.
  if (!is_own(course.local) || is_own(course.remote)) {
    reply(program, nullptr, false);
    return;
  }
  std::uint64_t* const last_flow = last_flow_of(asking, request.thread);
  if (last_flow != nullptr) flows_.tried(*last_flow);
  end_closed(course, Flows::kConnecting, now);
  if (!flows_.has_slot(course, slots_of(course), now)) end_closed(course, Flows::kMostlyConnected, now);
  KnownFlow* flow = flows_.begin(course, pid, what, request.bytes, now);
  if (flow == nullptr) {
    flows_.not_pinned({.pid = pid,
                       .course = course,
                       .what = what,
                       .why = "more connections to one port than have ports of their own"});
    reply(program, nullptr, false);
    return;
  }
  if (last_flow != nullptr) *last_flow = flow->id;
  wait_for_answer(std::move(program), flow->id, request.wait, now);
}

void Agent::note_member(Process* process, pid_t pid) {
  if (!service_ || process == nullptr || std::exchange(process->has_asked, true)) return;
  process->member = member_of(variables_of(pid), options_.path_service.job);
  if (process->member) service_->join(*process->member, options_.addresses);
}

std::uint64_t* Agent::last_flow_of(Process* process, std::uint64_t thread) {
  if (process == nullptr || thread == 0) return nullptr;
  if (process->last_flows.size() >= kMostThreads) process->last_flows.clear();
  return &process->last_flows[thread];
}

std::size_t Agent::slots_of(const Course& course) const {
  if (service_) return kSlots;
  const auto ports = options_.ports.find(course.remote);
  return ports == options_.ports.end() ? 0 : ports->second.size();
}

void Agent::end_closed(const Course& course, Nanos connecting, Nanos now) {
  SoughtFlows sought;
  for (KnownFlow* flow : flows_.of(course)) {
    // A program that has its port, but has not connected yet, would find the port in use.
    const bool has_tried = flow->tried || now >= flow->begun + connecting;
    if (course.tcp && flow->declared == 0 && flow->port != 0 && has_tried) sought.add(*flow);
  }
  const auto found = kernel_.find_all(sought.connections);
  for (std::size_t number = 0; number < found.size(); ++number) {
    if (found[number] != Found::kNone) continue;
    gone_.insert(sought.connections[number].connection);
    flows_.end(sought.flows[number]->id);
  }
}

bool Agent::reply(const FileDescriptor& program, const KnownFlow* flow, bool away) const {
  Reply said;
  said.away = static_cast<std::uint8_t>(away);
  if (flow != nullptr) {
    said.port = flow->port;
    said.id = flow->id;
    said.local = flow->course.local;
  }
  return ::send(program.get(), &said, sizeof said, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof said;
}

// -- answers --------------------------------------------------------------------------------------------------------

bool Agent::free(const KnownFlow& flow, std::uint16_t port) {
  const auto others = flows_.of(flow.course);
  if (std::ranges::any_of(others, [&](const auto* other) { return other->port == port && other->id != flow.id; })) {
    return false;
  }
  if (!flow.course.tcp) return true;
  const Connection connection = connection_of(flow.course, port);
  return gone_.contains(connection) || kernel_.find(connection) == Found::kNone;
}

std::optional<std::uint16_t> Agent::answer(std::uint64_t id, Nanos now) {
  for (;;) {
    KnownFlow* flow = flows_.find(id);
    if (flow == nullptr) return 0;
    std::optional<std::uint16_t> port;
    if (service_) {
      port = service_->port(*flow);
    } else {
      const auto ports = options_.ports.find(flow->course.remote);
      port = ports == options_.ports.end() || flow->slot >= ports->second.size() ? 0 : ports->second[flow->slot];
    }
    if (!port || *port == 0 || free(*flow, *port)) return port;
    // Only a program of other software has taken this port, or a connection that the kernel still keeps.
    if (*port == std::exchange(flow->refused_port, *port)) return 0;
    if (!flows_.next_slot(id, now)) return 0;
    tell_service();
  }
}

void Agent::wait_for_answer(FileDescriptor program, std::uint64_t flow, Nanos wait, Nanos now) {
  tell_service();
  Waiting waiting{.program = std::move(program), .flow = flow, .since = now, .until = now + wait};
  // Where no service is asked, the answer is there already, and the program need not wait for others to be served.
  if (service_ || !settled(waiting, false, now)) waiting_.push_back(std::move(waiting));
}

void Agent::note_path(KnownFlow& flow) const {
  if (!service_ || service_->port(flow) != flow.port) return;
  path_client::Path path = service_->path(flow);
  if (path.empty()) return;  // a service that has taken over may not know it
  if (flow.path != path) flow.probed_at = flow.course.tcp && service_->measures(flow) ? now() : 0;
  flow.path = std::move(path);
}

void Agent::settle(Nanos now) {
  if (waiting_.empty()) return;
  const bool service_away = service_ && service_->away(now);
  std::erase_if(waiting_, [&](const Waiting& waiting) { return settled(waiting, service_away, now); });
}

bool Agent::settled(const Waiting& waiting, bool service_away, Nanos now) {
  const auto port = answer(waiting.flow, now);
  KnownFlow* flow = flows_.find(waiting.flow);
  const bool in_vain = service_ && now >= waiting.until && service_->connected() == 0;
  const bool away = (service_away || in_vain) && flow != nullptr && !port;
  if (!port && flow != nullptr && !away && now < waiting.until) return false;
  longest_wait_ = std::max(longest_wait_, now - waiting.since);
  if (port && *port != 0 && flow != nullptr) {
    flow->port = flow->planned_port = *port;
    note_path(*flow);
    flow->begun = now;  // its program connects from now on
    if (!reply(waiting.program, flow, false)) {
      flows_.end(waiting.flow);
      return true;
    }
    ++given_;
    if (service_) service_->begun(*flow);
    return true;
  }
  reply(waiting.program, nullptr, away);
  if (flow == nullptr) return true;
  flows_.not_pinned({.pid = flow->pid,
                     .course = flow->course,
                     .what = flow->what,
                     .why = away                      ? "the path service does not answer"
                            : !port                   ? "its port was not known within " + seconds(now - waiting.since)
                            : flow->refused_port != 0 ? "its planned port is in use"
                                                      : "no port is planned for this peer"});
  flows_.end(waiting.flow);
  return true;
}

void Agent::follow_plan() {
  for (const auto& [course, slot] : service_->take()) {
    KnownFlow* flow = flows_.find(course, slot);
    if (flow == nullptr || flow->port == 0 || !flow->announced) continue;
    note_path(*flow);
    const auto port = service_->port(*flow);
    if (!port || *port == 0 || *port == flow->planned_port) continue;
    flow->planned_port = *port;
    if (flow->declared == 0) continue;  // a socket cannot move
    const auto owner = processes_.find(flow->pid);
    if (owner == processes_.end() || owner->second.moves.size() >= kMostMoves) continue;
    owner->second.moves.emplace_back(flow->id, *port);  // its program says whether it has moved
  }
}

void Agent::tell_service() {
  for (const Flows::News& news : flows_.take_news()) {
    if (!service_) continue;
    try {
      service_->tell(news);
    } catch (const DeviceError&) {
      // No thread for another client: the flow finds no answer, and keeps the kernel's port.
    }
  }
}

// -- what the kernel says ---------------------------------------------------------------------------------------------

void Agent::sample(Nanos now) {
  sampled_at_ = now;
  const auto connections = kernel_.connections();
  std::optional<std::set<std::uint16_t>> datagrams;
  bool asked_datagrams = false;
  SoughtFlows sought;
  std::vector<std::pair<std::uint64_t, std::optional<std::uint64_t>>> counts;
  for (auto& [id, flow] : flows_.all()) {
    if (flow.port == 0 || flow.declared != 0) continue;
    if (flow.course.tcp) {
      if (!connections) continue;
      flow.timeouts = 0;
      const auto found = connections->find(connection_of(flow.course, flow.port));
      if (found == connections->end()) {
        sought.add(flow);
        continue;
      }
      counts.emplace_back(id, found->second.sent_bytes);
      flow.timeouts = found->second.timeouts;
      flow.came = flow.came || found->second.connected;
      flow.may_retry = flow.may_retry && !flow.came;
    } else {
      if (!std::exchange(asked_datagrams, true)) datagrams = kernel_.datagram_ports();
      if (!datagrams) continue;
      counts.emplace_back(id, datagrams->contains(flow.port) ? std::optional(flow.bytes) : std::nullopt);
    }
  }
  const auto found = kernel_.find_all(sought.connections);
  for (std::size_t number = 0; number < found.size(); ++number) {
    KnownFlow& flow = *sought.flows[number];
    flow.tried = flow.tried || found[number] == Found::kTimeWait;
    if (found[number] == Found::kNone || found[number] == Found::kTimeWait) counts.emplace_back(flow.id, std::nullopt);
  }
  for (const auto& [id, bytes] : counts) flows_.counted(id, bytes, now);
}

void Agent::forget(pid_t pid) {
  flows_.left(pid);
  const std::optional<Member> member = std::move(processes_[pid].member);
  processes_.erase(pid);
  const auto is_it = [&](const auto& each) { return each.second.member == member; };
  if (member && member != options_.member && std::ranges::none_of(processes_, is_it)) service_->leave(*member);
}

std::string Agent::report() const {
  return report_of({.job = options_.path_service.job,
                    .asks_service = service_.has_value(),
                    .clients = service_ ? service_->clients() : 0,
                    .connected = service_ ? service_->connected() : 0,
                    .asked = asked_,
                    .given = given_,
                    .longest_wait = longest_wait_},
                   flows_, now());
}

}  // namespace paralet::pin
