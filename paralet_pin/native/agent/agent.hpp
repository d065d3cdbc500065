// SPDX-License-Identifier: Apache-2.0
// The agent of a host's programs: takes their requests, asks the path service, watches their connections. One thread,
// beside those of the path clients.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent_protocol.hpp"
#include "base/file_descriptor.hpp"
#include "base/interfaces.hpp"
#include "flows.hpp"
#include "kernel_sockets.hpp"
#include "processor.hpp"
#include "routes.hpp"
#include "service_ports.hpp"

namespace paralet::pin {

struct AgentOptions {
  std::string socket_path;
  pid_t program = 0;                  ///< the agent ends with it and with all that have asked; 0: at a signal only
  std::vector<IpAddress> addresses;   ///< of this host on the fabric
  path_client::Options path_service;  ///< without an address: none is asked
  std::optional<Member> member;       ///< that the program is, if its variables are the agent's
  bool connects_ahead = false;        ///< to it, before the first flow
  std::map<IpAddress, std::vector<std::uint16_t>> ports;  ///< by peer, in place of a path service
};

class Agent {
 public:
  /// Listens. Throws std::system_error where it cannot.
  explicit Agent(AgentOptions options);
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;
  ~Agent();

  /// Starts no thread before this call, so that the process may fork until then. Returns when the program and all
  /// processes that have asked are gone, or after a signal.
  void run(int signals);

 private:
  /// A program that waits for its reply.
  struct Waiting {
    FileDescriptor program;
    std::uint64_t flow = 0;
    Nanos since = 0;
    Nanos until = 0;
  };
  struct Process {
    FileDescriptor handle;  ///< pidfd
    std::deque<std::pair<std::uint64_t, std::uint16_t>> moves;
    std::map<std::uint64_t, std::uint64_t> last_flows;  ///< that its threads have asked for, by thread
    bool has_asked = false;
    std::optional<Member> member;  ///< that it is
  };

  void accept(Nanos now);
  void serve(Nanos now);
  /// Serves a program whose request has come. False while it has not.
  bool served(FileDescriptor& program);
  void serve(FileDescriptor program, const Request& request);
  void ask(FileDescriptor program, const Request& request, pid_t pid, Nanos now);
  /// A process asks. If that is new, the service is told which rank it is.
  void note_member(Process* process, pid_t pid);
  /// Where the last flow of a thread is noted; nullptr: nowhere.
  static std::uint64_t* last_flow_of(Process* process, std::uint64_t thread);
  /// Ends the flows of a course whose connections are gone, such as those that a peer has refused, before `sample`
  /// does. A flow that may still be to connect stays until it is `connecting` old.
  void end_closed(const Course& course, Nanos connecting, Nanos now);
  /// How many of a course's slots have ports.
  [[nodiscard]] std::size_t slots_of(const Course& course) const;
  /// False where the program is gone, or waits no more.
  bool reply(const FileDescriptor& program, const KnownFlow* flow, bool away) const;
  /// Whether a flow has its answer: a port, or none. Takes it to the next slot when the port is in use.
  [[nodiscard]] std::optional<std::uint16_t> answer(std::uint64_t id, Nanos now);
  [[nodiscard]] bool free(const KnownFlow& flow, std::uint16_t port);
  /// The path service may have told the path of the port that a flow has.
  void note_path(KnownFlow& flow) const;
  void settle(Nanos now);
  /// Whether the program has its reply: as soon as there is one, or nothing can come any more.
  bool settled(const Waiting& waiting, bool service_away, Nanos now);
  void wait_for_answer(FileDescriptor program, std::uint64_t flow, Nanos wait, Nanos now);
  void sample(Nanos now);
  void tell_service();
  void follow_plan();
  Process* process(pid_t pid);
  void forget(pid_t pid);
  [[nodiscard]] std::string report() const;
  [[nodiscard]] Nanos deadline(Nanos now) const;

  static constexpr Nanos kSampleEvery = 500 * kMillisecond;
  static constexpr std::size_t kMostProcesses = 4096;
  static constexpr std::size_t kMostMoves = 4096;
  static constexpr std::size_t kMostThreads = 65536;

  AgentOptions options_;
  FileDescriptor listener_;
  FileDescriptor wake_;
  uid_t user_;
  KernelSockets kernel_;
  std::set<Connection> gone_;  ///< of which the kernel has said, during one request, that there is none
  Routes routes_;
  Flows flows_;
  Processor processor_;
  std::optional<ServicePorts> service_;
  std::vector<std::pair<FileDescriptor, Nanos>> arrived_;  ///< programs that are to send a request, and until when
  std::vector<Waiting> waiting_;
  std::map<pid_t, Process> processes_;
  Nanos sampled_at_ = 0;
  std::uint64_t asked_ = 0;
  std::uint64_t given_ = 0;
  Nanos longest_wait_ = 0;  ///< of a program for its answer
};

}  // namespace paralet::pin
