// SPDX-License-Identifier: Apache-2.0
// A program's queue pair, the agent beside it, and a path service that the test plays.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "agent.hpp"
#include "agent_link.hpp"
#include "agent_protocol.hpp"
#include "base/clock.hpp"
#include "base/file_descriptor.hpp"
#include "base/socket_address.hpp"
#include "fake_path_service.hpp"
#include "linked_functions.hpp"
#include "verbs_program.hpp"

namespace paralet::pin {
namespace {

constexpr std::uint32_t kPeer = 0x7F000002;

/// An agent that asks a path service.
AgentOptions asks(const std::string& service) {
  return {.addresses = {IpAddress(fake_verbs::kAddress)},
          .path_service = {.service = service,
                           .token = "t",
                           .reconnect_least = kMillisecond,
                           .reconnect_most = kMillisecond,
                           .log = [](const std::string&) {}}};
}

/// An agent that runs in a thread. The library finds it by its variable, which is read once.
class RunningAgent {
 public:
  /// Calls `before` when the agent listens, but does not run yet.
  explicit RunningAgent(
      AgentOptions options, const std::function<void(const AgentLink&)>& before = [](const AgentLink&) {})
      : socket_(folder() + "/agent"), agent_(at(socket_, std::move(options))) {
    ::setenv("PARALET_PIN_AGENT", socket_.c_str(), 1);
    ::setenv("PARALET_PIN_WAIT_US", "20000000", 1);
    before(link());
    thread_ = std::thread([this] { agent_.run(stop_.get()); });
  }
  RunningAgent(const RunningAgent&) = delete;
  RunningAgent& operator=(const RunningAgent&) = delete;
  ~RunningAgent() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
    thread_.join();
    std::filesystem::remove_all(std::filesystem::path(socket_).parent_path());
  }

  [[nodiscard]] AgentLink link() const { return AgentLink(socket_); }
  /// What `paralet pin --check` gets.
  [[nodiscard]] nlohmann::json check() const {
    const FileDescriptor asking(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    socket_.copy(to.sun_path, sizeof to.sun_path - 1);
    REQUIRE(::connect(asking.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
    const Request request{.kind = RequestKind::kCheck};
    REQUIRE(::send(asking.get(), &request, sizeof request, MSG_NOSIGNAL) == sizeof request);
    std::string text;
    std::array<char, 4096> chunk;
    for (ssize_t got = 0; (got = ::recv(asking.get(), chunk.data(), chunk.size(), 0)) > 0;) {
      text.append(chunk.data(), static_cast<std::size_t>(got));
    }
    return nlohmann::json::parse(text);
  }

 private:
  static std::string folder() {
    std::string name = (std::filesystem::temp_directory_path() / "paralet-pin-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    return name;
  }
  static AgentOptions at(const std::string& socket, AgentOptions options) {
    options.socket_path = socket;
    return options;
  }

  std::string socket_;
  FileDescriptor stop_{::eventfd(0, EFD_CLOEXEC)};
  Agent agent_;
  std::thread thread_;
};

std::size_t calls_of(const std::string& call) {
  const auto calls = fake_verbs::record().calls;
  return static_cast<std::size_t>(std::ranges::count(calls, call));
}

template <typename Condition>
bool eventually(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// Two ports for a connection to kPeer and port 4791, at once, so that the agent sees the second one only.
void assign_twice(const paralet::test::FakePathService& service, const nlohmann::json& id) {
  std::string both;
  for (const int port : {61001, 61002}) {
    both += nlohmann::json{{"type", "assign"}, {"peer", "127.0.0.2"}, {"peer_port", 4791},
                           {"ports", {port}},  {"generation", port},  {"id", id}}
                .dump() +
            '\n';
  }
  service.send_raw(both);
}

FileDescriptor stream_socket() { return FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

/// A listener, and its name.
std::pair<FileDescriptor, SocketAddress> listens() {
  FileDescriptor listener = stream_socket();
  SocketAddress name(IpAddress(kPeer), 0);
  REQUIRE(::bind(listener.get(), name.get(), name.length()) == 0);
  REQUIRE(::listen(listener.get(), 1) == 0);
  REQUIRE(::getsockname(listener.get(), name.get(), name.length_place()) == 0);
  return {std::move(listener), name};
}

/// Binds a socket to a port that the kernel does not choose by itself: it would free its own choice with a connection.
std::uint16_t bind(const FileDescriptor& socket) {
  for (std::uint16_t port = 61101; port != 0; ++port) {
    const SocketAddress from(IpAddress(fake_verbs::kAddress), port);
    if (::bind(socket.get(), from.get(), from.length()) == 0) return port;
  }
  FAIL("no port is free");
  return 0;
}

TEST_CASE("a port is free again when its thread asks for another one, and not before: it may still connect") {
  AgentOptions options{.addresses = {IpAddress(fake_verbs::kAddress)}};
  options.ports[IpAddress(kPeer)] = {61001, 61002};
  const RunningAgent agent(std::move(options));
  const auto port_of_thread = [&](std::uint64_t thread) {
    const auto reply =
        agent.link().ask({.remote_port = 1, .remote = IpAddress(kPeer), .wait = 20 * kSecond, .thread = thread});
    REQUIRE(reply);
    return reply->port;
  };
  CHECK(port_of_thread(1) == 61001);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // a busy machine holds the program up
  CHECK(port_of_thread(2) == 61002);
  CHECK(port_of_thread(1) == 61001);
}

/// The reply to a program for whose connection the service assigns two ports, one after the other.
Reply asked(paralet::test::FakePathService& service, const RunningAgent& agent, const Request& request) {
  std::optional<Reply> reply;
  std::thread program([&] { reply = agent.link().ask(request); });
  service.welcome();
  assign_twice(service, service.receive()["id"]);
  program.join();
  REQUIRE(reply);
  REQUIRE(reply->port != 0);
  return *reply;
}

TEST_CASE("a connection that grows is announced with the port that it has, though another one was assigned first") {
  paralet::test::FakePathService service;
  const RunningAgent agent(asks(service.address()));
  const Request request{
      .remote_port = 4791, .remote = IpAddress(kPeer), .bytes = Flows::kElephant, .wait = 20 * kSecond};
  const Reply reply = asked(service, agent, request);
  agent.link().tell({.kind = RequestKind::kSent, .id = reply.id, .bytes = 4 * Flows::kElephant});
  CHECK(service.receive()["port"] == reply.port);
}

TEST_CASE(
    "a connection tells since when nobody has probed its path, where hosts measure, and else that it is followed") {
  for (const bool measured : {true, false}) {
    paralet::test::FakePathService service;
    const RunningAgent agent(asks(service.address()));
    std::optional<Reply> reply;
    std::thread program(
        [&] { reply = agent.link().ask({.remote_port = 4791, .remote = IpAddress(kPeer), .wait = 30 * kSecond}); });
    measured ? service.welcome_probes() : service.welcome();
    const nlohmann::json id = service.receive()["id"];
    const auto tell = [&](const char* hop) {
      const auto by = nlohmann::json::array({nlohmann::json::array({hop})});
      service.assign({IpAddress(kPeer), 4791}, {50001}, {{"id", id}, {"paths", by}});
    };
    tell("leaf1:5");
    program.join();
    REQUIRE(reply);
    REQUIRE(reply->port == 50001);
    const auto flow = [&] { return agent.check()["pinned"].at(0); };
    CHECK(flow()["probed_s"].is_number() == measured);
    if (!measured) continue;
    const Nanos before = now();
    tell("leaf1:6");
    REQUIRE(eventually([&] { return flow()["path"] == nlohmann::json{"leaf1:6"}; }));
    const double probed_s = flow()["probed_s"];
    CHECK(probed_s <= to_seconds(now() - before));
  }
}

TEST_CASE("a path service that comes back is told the port of a connection, though another one was assigned first") {
  paralet::test::FakePathService service;
  const RunningAgent agent(asks(service.address()));
  const Request request{.remote_port = 4791, .remote = IpAddress(kPeer), .wait = 20 * kSecond};
  const Reply reply = asked(service, agent, request);
  service.disconnect();
  service.welcome();
  CHECK(service.receive()["port"] == reply.port);
}

TEST_CASE("a connection to whose peer one port is planned, which is in use, waits for no other one") {
  paralet::test::FakePathService service;
  const RunningAgent agent(asks(service.address()));
  const auto listening = listens();
  const SocketAddress& to = listening.second;
  const FileDescriptor other = stream_socket();
  const std::uint16_t port = bind(other);
  REQUIRE(::connect(other.get(), to.get(), to.length()) == 0);
  std::optional<Reply> reply;
  std::thread program(
      [&] { reply = agent.link().ask({.remote_port = to.port(), .remote = IpAddress(kPeer), .wait = 20 * kSecond}); });
  for (std::size_t lanes = 1; lanes <= 2; ++lanes) {  // each slot has a client of its own
    service.welcome();
    service.assign({IpAddress(kPeer), to.port()}, std::vector(lanes, port),
                   {{"id", service.receive()["id"]}, {"peer_port", to.port()}});
  }
  program.join();
  REQUIRE(reply);
  CHECK(reply->port == 0);
}

TEST_CASE("a connection that did not come at once, but came, ends with its connection, though its socket stays open") {
  const auto [listener, to] = listens();
  const FileDescriptor program = stream_socket();
  const std::uint16_t port = bind(program);
  AgentOptions options{.addresses = {IpAddress(fake_verbs::kAddress)}};
  options.ports[to.address()] = {port};
  const RunningAgent agent(std::move(options));
  const auto reply = agent.link().ask({.remote_port = to.port(), .remote = to.address(), .wait = 20 * kSecond});
  REQUIRE(reply);
  REQUIRE(reply->port == port);
  REQUIRE(::connect(program.get(), to.get(), to.length()) == 0);
  agent.link().tell({.kind = RequestKind::kTried, .id = reply->id});  // as the library does after EINPROGRESS
  FileDescriptor accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  REQUIRE(::send(program.get(), "12345", 5, MSG_NOSIGNAL) == 5);
  std::array<char, 5> read{};
  REQUIRE(::recv(accepted.get(), read.data(), read.size(), MSG_WAITALL) == std::ssize(read));
  CHECK(eventually([&] { return agent.check()["pinned"].at(0)["bytes"] == read.size(); }));
  const linger reset{.l_onoff = 1, .l_linger = 0};
  REQUIRE(::setsockopt(accepted.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset) == 0);
  accepted.reset();
  nlohmann::json known;
  const bool ended = eventually([&] {
    // Nobody repeats a reset that a full queue of the loopback has dropped: what is sent then has another one as
    // answer.
    static_cast<void>(::send(program.get(), "6", 1, MSG_NOSIGNAL | MSG_DONTWAIT));
    return (known = agent.check()["pinned"]).empty();
  });
  INFO(known.dump());
  CHECK(ended);
}

/// The socket by which the agent of this process asks the kernel for connections.
int diagnosing_socket() {
  const auto option = [](int fd, int name) {
    int value = -1;
    socklen_t length = sizeof value;
    return ::getsockopt(fd, SOL_SOCKET, name, &value, &length) == 0 ? value : -1;
  };
  for (int fd = 0; fd < 1024; ++fd) {
    if (option(fd, SO_DOMAIN) == AF_NETLINK && option(fd, SO_PROTOCOL) == NETLINK_SOCK_DIAG) return fd;
  }
  FAIL("the agent has no such socket");
  return -1;
}

TEST_CASE("a connection that hangs still does while the kernel does not tell of connections") {
  const auto listening = listens();
  const SocketAddress& to = listening.second;
  const auto begins_to_connect = [&](const FileDescriptor& socket) {
    REQUIRE(::fcntl(socket.get(), F_SETFL, O_NONBLOCK) == 0);
    return ::connect(socket.get(), to.get(), to.length());
  };
  std::array<FileDescriptor, 4> fill;  // the listener's queue: it answers no more
  for (FileDescriptor& each : fill) {
    each = stream_socket();
    begins_to_connect(each);
  }
  const FileDescriptor program = stream_socket();
  const std::uint16_t port = bind(program);
  AgentOptions options{.addresses = {IpAddress(fake_verbs::kAddress)}};
  options.ports[to.address()] = {port};
  const RunningAgent agent(std::move(options));
  REQUIRE(agent.link().ask({.remote_port = to.port(), .remote = to.address(), .wait = 20 * kSecond}));
  begins_to_connect(program);
  const auto timeouts = [&] { return agent.check()["pinned"].at(0)["timeouts"].get<int>(); };
  REQUIRE(eventually([&] { return timeouts() > 0; }));
  std::array<int, 2> ends{};  // the agent's requests come here, and have no answer
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
  const FileDescriptor kernel(ends[0]);
  const FileDescriptor replacement(ends[1]);
  REQUIRE(::shutdown(kernel.get(), SHUT_WR) == 0);
  REQUIRE(::dup2(replacement.get(), diagnosing_socket()) >= 0);
  std::array<char, 256> request{};
  REQUIRE(::recv(kernel.get(), request.data(), request.size(), 0) > 0);
  CHECK(timeouts() > 0);  // the agent answers after it has asked in vain
}

TEST_CASE("a process that is gone when the agent reads its request has no flow") {
  AgentOptions options{.addresses = {IpAddress(fake_verbs::kAddress)}};
  options.ports[IpAddress(kPeer)] = {61002};
  const RunningAgent agent(std::move(options), [](const AgentLink& link) {
    const pid_t child = ::fork();
    if (child == 0) {
      link.tell({.tcp = 0, .remote_port = 4791, .remote = IpAddress(kPeer), .bytes = 1 << 30, .wait = kSecond});
      ::_exit(0);
    }
    REQUIRE(::waitpid(child, nullptr, 0) == child);
  });
  REQUIRE(agent.check()["asked"] == 1);
  const nlohmann::json said = agent.check();  // flows that were begun before the last one have their ports now
  CHECK(said["given"] == 0);
  CHECK(said["pinned"].empty());
}

TEST_CASE("a queue pair gets the path service's port as an elephant, follows the plan, and is released at its end") {
  fake_verbs::reset();
  fake_verbs::nic().sport_error = 0;  // mlx5
  paralet::test::FakePathService service;
  const RunningAgent agent(asks(service.address()));
  const test::Opened device(test::kLinked);
  ibv_qp* qp = device.create();
  int result = -1;
  std::thread program([&] { result = device.connect(qp, kPeer); });
  service.welcome();
  const nlohmann::json announced = service.receive();
  CHECK(announced["type"] == "announce");
  CHECK(announced["peer"] == "127.0.0.2");
  CHECK(announced["bytes"] >= 1 << 20);
  const auto plan = [&](std::uint16_t port) {
    const auto by = nlohmann::json::array({nlohmann::json::array({"leaf1:5", "to " + std::to_string(port)})});
    service.assign({IpAddress(kPeer), 4791}, {port}, {{"id", announced["id"]}, {"paths", by}});
  };
  plan(50001);
  program.join();
  CHECK(result == 0);
  CHECK(fake_verbs_port(qp->qp_num) == 50001);
  nlohmann::json flow = agent.check()["pinned"].at(0);
  CHECK(flow["what"] == "queue pair 0x11 of fake0");
  CHECK(flow["protocol"] == "udp");
  CHECK(flow["remote_port"] == 4791);
  CHECK(flow["port"] == 50001);
  CHECK(flow["path"] == nlohmann::json{"leaf1:5", "to 50001"});
  CHECK(flow["elephant"] == true);

  plan(60000);
  CHECK(eventually([&] { return fake_verbs_port(qp->qp_num) == 60000; }));
  flow = agent.check()["pinned"].at(0);
  CHECK(flow["port"] == 60000);
  CHECK(flow["planned_port"] == 60000);
  CHECK(flow["path"] == nlohmann::json{"leaf1:5", "to 60000"});

  fake_verbs::nic().sport_error = EIO;
  plan(61000);
  CHECK(eventually([&] { return agent.check()["pinned"].at(0)["planned_port"] == 61000; }));
  CHECK(eventually([&] { return calls_of("sport 17 61000") == 1; }));
  flow = agent.check()["pinned"].at(0);
  CHECK(flow["port"] == 60000);
  CHECK(flow["path"] == nlohmann::json{"leaf1:5", "to 60000"});

  const std::uint32_t own_choice = 0x123;
  ibv_qp* other = device.create();
  ibv_qp_attr attributes = test::Opened::ready(kPeer);
  attributes.ah_attr.grh.flow_label = own_choice;
  CHECK(ibv_modify_qp(other, &attributes, IBV_QP_STATE | IBV_QP_AV) == 0);
  CHECK(agent.check()["not_pinned"].at(0)["why"] == "its program sets a flow label of its own");

  CHECK(device.destroy(other) == 0);
  CHECK(device.destroy(qp) == 0);
  CHECK(service.receive()["type"] == "release");
  CHECK(agent.check()["pinned"].empty());
}

TEST_CASE("a flow has no path when it has moved to a port that the plan has left again") {
  paralet::test::FakePathService service;
  const RunningAgent agent(asks(service.address()));
  const auto ask = [link = agent.link()] {
    return link.ask(
        {.tcp = 0, .remote_port = 4791, .remote = IpAddress(kPeer), .bytes = 1 << 30, .wait = 20 * kSecond});
  };
  std::optional<Reply> reply;
  std::thread program([&] { reply = ask(); });
  service.welcome();
  const nlohmann::json announced = service.receive();
  const auto plan = [&](std::uint16_t port) {
    const auto by = nlohmann::json::array({nlohmann::json::array({"to " + std::to_string(port)})});
    service.assign({IpAddress(kPeer), 4791}, {port}, {{"id", announced["id"]}, {"paths", by}});
  };
  plan(50001);
  program.join();
  REQUIRE(reply);
  for (const std::uint16_t port : {60000, 61000}) {
    plan(port);
    REQUIRE(eventually([&] { return agent.check()["pinned"].at(0)["planned_port"] == port; }));
  }
  const auto moved = [&](std::uint16_t to) {
    static_cast<void>(
        agent.link().ask({.kind = RequestKind::kMoves, .id = reply->id, .wait = kSecond, .moved_to = to}));
    return agent.check()["pinned"].at(0)["path"];
  };
  CHECK(moved(60000) == nlohmann::json::array());
  CHECK(moved(61000) == nlohmann::json{"to 61000"});
}

}  // namespace
}  // namespace paralet::pin
