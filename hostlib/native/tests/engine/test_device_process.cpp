// SPDX-License-Identifier: Apache-2.0
// Limits of the process, and fork.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <ctime>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "base/file_descriptor.hpp"
#include "engine/device_fixture.hpp"

namespace paralet {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture

/// Opens files until the process may open no more.
class ExhaustedDescriptors {
 public:
  ExhaustedDescriptors() {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    rlimit few = before_;
    few.rlim_cur = 256;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
    const auto take = [] { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); };
    for (int fd = take(); fd >= 0; fd = take()) taken_.emplace_back(fd);
    REQUIRE(errno == EMFILE);
  }
  ExhaustedDescriptors(const ExhaustedDescriptors&) = delete;
  ExhaustedDescriptors& operator=(const ExhaustedDescriptors&) = delete;
  ~ExhaustedDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  void release(std::size_t count) { taken_.resize(taken_.size() - count); }

 private:
  rlimit before_{};
  std::vector<FileDescriptor> taken_;
};

TEST_CASE("a process without free descriptors refuses peers, keeps its lanes' ports and goes on" * of_soft()) {
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  Device c(options(0x7F000003));
  const auto listener = c.listen();
  const std::string error =
      "cannot open a UDP socket: Too many open files: raise the limit of this process with `ulimit -n`";
  {
    ExhaustedDescriptors exhausted;
    const std::uint16_t port = pair.a.counters().lanes[0].qp.port;
    CHECK(pair.a.set_port(kB, 0, port == 0xD555 ? 0xD556 : 0xD555));
    joined.check(10'000);
    CHECK(pair.a.counters().lanes[0].qp.port == port);
    exhausted.release(3);  // both ends of the channel and the first of four ports; a and b have theirs already
    CHECK(connect_error(c, joined.listener->handle) == error);
    CHECK(connect_error(pair.a, listener->handle) == "127.0.0.3 refused: " + error);
  }
  joined.check(10'000);
  CHECK(open(c.connect(joined.listener->handle)));
}

TEST_CASE("a connection that arrives while no descriptor is free waits without using processor time") {
  DevicePair pair;
  const auto listener = pair.b.listen();
  ConnectionPtr connection;
  {
    ExhaustedDescriptors exhausted;
    exhausted.release(1);  // for our end of the channel
    connection = pair.a.connect(listener->handle);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    timespec before{};
    timespec after{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    const auto start = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
    const double used =
        static_cast<double>(after.tv_sec - before.tv_sec) + static_cast<double>(after.tv_nsec - before.tv_nsec) * 1e-9;
    CHECK(used < wall.count() / 4);
  }
  CHECK(open(connection));
}

TEST_CASE("a forked child gets errors and may close a device, while the parent goes on using it") {
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  joined.check(1000);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    bool refused = pair.a.closed() && pair.a.inherited();
    try {
      static_cast<void>(pair.a.counters());
      refused = false;
    } catch (const DeviceError&) {
    }
    const auto message = submit(pair.a, joined.to, Request::Kind::kSend, Bytes(10));
    refused = refused && message->state == State::kFailed &&
              message->error == "the device is the parent process's: a forked child opens its own";
    pair.a.close_connection(joined.to);
    pair.a.close();
    pair.b.close();
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  const bool ended = eventually([&] { return ::waitpid(child, &status, WNOHANG) == child; });
  if (!ended) ::kill(child, SIGKILL);
  CHECK(ended);
  CHECK(status == 0);
  CHECK_FALSE(pair.a.closed());
  joined.check(10'000);
}

/// A process with a device that listens, takes a connection, posts two receives and answers the first message.
class StoppablePeer {
 public:
  static constexpr std::size_t kBytes = 100'000;  // longer than what is copied: a send is done when it is acknowledged

  StoppablePeer() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe(ends.data()) == 0);
    const FileDescriptor told(ends[0]);
    FileDescriptor tells(ends[1]);
    child_ = ::fork();
    REQUIRE(child_ >= 0);
    if (child_ == 0) {
      try {
        receive(tells.get());
      } catch (...) {  // the parent fails too, and says where
      }
      ::_exit(1);
    }
    tells = FileDescriptor();
    REQUIRE(::read(told.get(), handle.data(), handle.size()) == static_cast<ssize_t>(handle.size()));
  }
  StoppablePeer(const StoppablePeer&) = delete;
  StoppablePeer& operator=(const StoppablePeer&) = delete;
  ~StoppablePeer() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  /// Returns when it is stopped.
  void stop() const {
    REQUIRE(::kill(child_, SIGSTOP) == 0);
    int status = 0;
    REQUIRE(::waitpid(child_, &status, WUNTRACED) == child_);
    REQUIRE(WIFSTOPPED(status));
  }
  std::array<std::byte, handshake::kHandleBytes> handle{};

 private:
  static void receive(int tells) {
    Device device(options(kB));
    const auto listener = device.listen();
    if (::write(tells, listener->handle.data(), listener->handle.size()) < 0) return;
    const ConnectionPtr connection = accept(*listener);
    const auto first = submit(device, connection, Request::Kind::kReceive, Bytes(kBytes));
    const auto second = submit(device, connection, Request::Kind::kReceive, Bytes(kBytes));
    require_done(first);
    const auto answer = submit(device, connection, Request::Kind::kSend, Bytes(kBytes));
    require_done(answer);
    ::pause();
  }
  pid_t child_ = -1;
};

TEST_CASE("acknowledgements of a kernel do not count as a sign of life of the process, which may be stopped") {
  const StoppablePeer peer;
  Device device(options(kA));
  const ConnectionPtr connection = device.connect(peer.handle);
  REQUIRE(open(connection));
  const auto answer = submit(device, connection, Request::Kind::kReceive, Bytes(StoppablePeer::kBytes));
  require_done(submit(device, connection, Request::Kind::kSend, Bytes(StoppablePeer::kBytes)));
  require_done(answer);  // both receives had been advertised long before
  peer.stop();
  Nanos heard = 0;
  REQUIRE(eventually([&] {  // what it sent before is taken
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const Nanos before = std::exchange(heard, device.heard_at(*connection));
    return before == heard;
  }));
  const auto sent = submit(device, connection, Request::Kind::kSend, Bytes(StoppablePeer::kBytes));
  if (backend() == BackendKind::kTcp) require_done(sent);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(device.heard_at(*connection) == heard);
}

}  // namespace
}  // namespace paralet
