// SPDX-License-Identifier: Apache-2.0
// The plugin as a whole, called through the C boundary, on two addresses of the loopback interface. Time limits only
// keep a failing test from hanging.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "abi.hpp"
#include "base/build.hpp"
#include "base/interfaces.hpp"
#include "core.hpp"
#include "eventually.hpp"
#include "log.hpp"
#include "plugin_error.hpp"

namespace paralet::plugin {
namespace {

/// The lines of one level that the plugin has logged since the last call.
class Log {
 public:
  static void write(ncclDebugLogLevel level, unsigned long /*flags*/, const char* /*file*/, int /*line*/,
                    const char* format, ...) {
    std::array<char, 2048> text{};
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text.data(), text.size(), format, arguments);
    va_end(arguments);
    const std::lock_guard lock(mutex_);
    lines_.emplace_back(level, text.data());
  }
  static std::vector<std::string> take(ncclDebugLogLevel level) {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> out;
    for (const auto& [l, text] : lines_) {
      if (l == level) out.push_back(text);
    }
    lines_.clear();
    return out;
  }

 private:
  inline static std::mutex mutex_;
  inline static std::vector<std::pair<ncclDebugLogLevel, std::string>> lines_;
};

/// Sets a variable for its lifetime.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { REQUIRE(::setenv(name, value, 1) == 0); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { ::unsetenv(name_); }

 private:
  const char* name_;
};

/// A file in which NCCL finds the place of the loopback interface, which is no PCI device.
class Topology {
 public:
  Topology() { std::ofstream(path_) << R"(<net name="lo"/>)"; }
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;
  ~Topology() { std::filesystem::remove(path_); }

 private:
  std::string path_ = std::filesystem::temp_directory_path() / ("paralet-topology-" + std::to_string(::getpid()));
  Variable variable_{"NCCL_TOPO_FILE", path_.c_str()};
};

/// The plugin between init and finalize.
class Running {
 public:
  Running() { REQUIRE(abi::init(&context_, nullptr, &Log::write, nullptr) == ncclSuccess); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() { CHECK(abi::finalize(context_) == ncclSuccess); }

 private:
  Variable addresses_{"PARALET_ADDRESSES", "127.0.0.1,127.0.0.2"};
  Variable lanes_{"PARALET_LANES", "4"};
  void* context_ = nullptr;
};

struct Pair {
  std::unique_ptr<DataComm> send;
  std::unique_ptr<DataComm> receive;
};

/// Connects a device to a listener of another.
Pair connect(ListenComm& listener, void* context = nullptr, int device = 1) {
  Handle handle{};
  std::ranges::copy(listener.handle(), handle.begin());
  Pair out;
  CHECK(eventually([&] {
    if (!out.send) out.send = Core::instance().connect(context, device, handle);
    if (!out.receive) out.receive = Core::accept(listener);
    return out.send && out.receive;
  }));
  return out;
}

TEST_CASE("calls before init and after the last finalize fail") {
  int count = -1;
  CHECK(abi::devices(&count) == ncclInvalidUsage);
  CHECK(count == 0);
  { const Running running; }
  CHECK(abi::devices(&count) == ncclInvalidUsage);
  int not_a_context = 0;
  CHECK(abi::finalize(&not_a_context) == ncclInvalidArgument);
}

TEST_CASE("init with a wrong parameter fails with one warning, and succeeds with a correct one") {
  void* context = nullptr;
  Log::take(NCCL_LOG_WARN);
  {
    const Variable wrong("PARALET_LANES", "many");
    CHECK(abi::init(&context, nullptr, &Log::write, nullptr) == ncclInvalidUsage);
    const auto warnings = Log::take(NCCL_LOG_WARN);
    REQUIRE(warnings.size() == 1);
    CHECK(warnings[0] == "NET/paralet: init: PARALET_LANES='many' is not allowed: it must be 1 to 1024");
  }
  {
    const Variable wrong("PARALET_IFNAME", "nosuchnic");
    CHECK(abi::init(&context, nullptr, &Log::write, nullptr) == ncclSystemError);
    const auto warnings = Log::take(NCCL_LOG_WARN);
    REQUIRE(warnings.size() == 1);
    CHECK(warnings[0].find("no usable device") != std::string::npos);
  }
  { const Running running; }
}

TEST_CASE("NCCL_SOCKET_FAMILY sets the family of the devices, and the log names the address and those not used") {
  if (!interface_of(*parse_address("::1"))) {
    MESSAGE("skipped: the loopback interface has no address ::1");
    return;
  }
  const Variable interface("PARALET_IFNAME", "=lo");
  const Variable family("NCCL_SOCKET_FAMILY", "AF_INET6");
  Log::take(NCCL_LOG_INFO);
  void* context = nullptr;
  REQUIRE(abi::init(&context, nullptr, &Log::write, nullptr) == ncclSuccess);
  const auto lines = Log::take(NCCL_LOG_INFO);
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].find("lo is used with ::1, not with 127.0.0.1") != std::string::npos);
  CHECK(lines[1].find("PARALET_BACKEND=auto takes tcp: ") != std::string::npos);
  CHECK(lines[2].find("PARALET_IFNAME==lo, NCCL_SOCKET_FAMILY=AF_INET6: [0] lo ::1 ") != std::string::npos);
  CHECK(abi::finalize(context) == ncclSuccess);
}

TEST_CASE("one banner for all users, with the chosen back end, options and devices") {
  Log::take(NCCL_LOG_INFO);
  const Running running;
  const auto lines = Log::take(NCCL_LOG_INFO);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].find("PARALET_BACKEND=auto takes tcp: ") != std::string::npos);
  CHECK(lines[1].find(std::string("paralet ") + build_version() + " (" + build_commit() + "), ") != std::string::npos);
  for (const char* part : {"back end tcp", "m = 4 lanes", "policy ecmp", "2 devices by PARALET_ADDRESSES",
                           "[0] lo 127.0.0.1", "[1] lo 127.0.0.2"}) {
    CAPTURE(part);
    CHECK(lines[1].find(part) != std::string::npos);
  }
  void* second = nullptr;
  CHECK(abi::init(&second, nullptr, &Log::write, nullptr) == ncclSuccess);
  CHECK(Log::take(NCCL_LOG_INFO).empty());
  CHECK(abi::finalize(second) == ncclSuccess);
  int count = 0;
  CHECK(abi::devices(&count) == ncclSuccess);
  CHECK(count == 2);
}

TEST_CASE("unknown devices and NULL pointers are refused with a warning") {
  const Running running;
  ncclNetProperties_v12_t properties{};
  CHECK(abi::properties(2, &properties) == ncclInvalidArgument);
  CHECK(abi::properties(-1, &properties) == ncclInvalidArgument);
  void* comm = nullptr;
  CHECK(abi::listen(nullptr, 0, nullptr, &comm) == ncclInvalidArgument);
  Handle nothing{};
  CHECK(abi::connect(nullptr, 0, nullptr, nothing.data(), &comm) == ncclInvalidArgument);
  CHECK(comm == nullptr);
  CHECK(abi::test(nullptr, nullptr, nullptr) == ncclInvalidArgument);
}

/// Passes on what one side sends and the other receives, through memory registered with either.
void exchange(const Pair& pair, std::size_t bytes) {
  std::vector<std::byte> from(bytes);
  for (std::size_t i = 0; i < bytes; ++i) from[i] = static_cast<std::byte>(i * 7);
  std::vector<std::byte> to(bytes);
  void* source = nullptr;
  void* target = nullptr;
  REQUIRE(abi::reg_mr(pair.send.get(), from.data(), bytes, NCCL_PTR_HOST, &source) == ncclSuccess);
  REQUIRE(abi::reg_mr(pair.receive.get(), to.data(), bytes, NCCL_PTR_HOST, &target) == ncclSuccess);
  void* data = to.data();
  int tag = 5;
  void* receiving = nullptr;
  void* sending = nullptr;
  REQUIRE(abi::irecv(pair.receive.get(), 1, &data, &bytes, &tag, &target, nullptr, &receiving) == ncclSuccess);
  REQUIRE(abi::isend(pair.send.get(), from.data(), bytes, tag, source, nullptr, &sending) == ncclSuccess);
  for (void* request : {receiving, sending}) {
    int done = 0;
    REQUIRE(eventually([&] { return abi::test(request, &done, nullptr) != ncclSuccess || done == 1; }));
    REQUIRE(done == 1);
  }
  CHECK(to == from);
  CHECK(abi::dereg_mr(pair.send.get(), source) == ncclSuccess);
  CHECK(abi::dereg_mr(pair.receive.get(), target) == ncclSuccess);
}

/// What a forked child finds; 0: all is as it should be. It may not use the log, whose mutex is the parent's.
int child_of(const Pair& pair, ListenComm& listener, void* request, void* context) {
  std::array<std::byte, 8> memory{};
  void* data = memory.data();
  std::size_t bytes = memory.size();
  int tag = 0;
  int done = 0;
  void* out = nullptr;
  if (abi::isend(pair.send.get(), data, bytes, tag, nullptr, nullptr, &out) != ncclSystemError) return 1;
  if (abi::irecv(pair.receive.get(), 1, &data, &bytes, &tag, nullptr, nullptr, &out) != ncclSystemError) return 2;
  if (abi::iflush(pair.receive.get(), 0, nullptr, nullptr, nullptr, &out) != ncclSystemError) return 3;
  if (abi::test(request, &done, nullptr) != ncclSystemError || done != 0) return 4;
  if (abi::reg_mr(pair.send.get(), data, bytes, NCCL_PTR_HOST, &out) != ncclSystemError) return 5;
  if (abi::accept(&listener, &out) != ncclSystemError) return 6;
  if (abi::devices(&done) != ncclInvalidUsage) return 7;
  if (abi::finalize(context) != ncclInvalidArgument) return 8;
  if (abi::close_send(pair.send.get()) != ncclSuccess || abi::close_recv(pair.receive.get()) != ncclSuccess) return 9;
  if (abi::close_listen(&listener) != ncclSuccess) return 10;
  void* own = nullptr;
  if (abi::init(&own, nullptr, nullptr, nullptr) != ncclSuccess) return 11;
  {
    const auto own_listener = Core::instance().listen(own, 0);
    exchange(connect(*own_listener, own), 10'000);
  }
  return abi::finalize(own) == ncclSuccess ? 0 : 12;
}

/// A forked child of a sanitized process with threads: AddressSanitizer's allocator may hold a lock for ever there, and
/// ThreadSanitizer ends it when it starts a thread.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kForks = false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kForks = false;
#else
constexpr bool kForks = true;
#endif
#else
constexpr bool kForks = true;
#endif

TEST_CASE("a forked child gets errors for its parent's comms and may open its own, and the parent goes on") {
  if (!kForks) {
    MESSAGE("skipped: a sanitizer does not let a forked child allocate or start threads");
    return;
  }
  void* context = nullptr;
  const Variable addresses("PARALET_ADDRESSES", "127.0.0.1,127.0.0.2");
  REQUIRE(abi::init(&context, nullptr, &Log::write, nullptr) == ncclSuccess);
  {
    const auto listener = Core::instance().listen(context, 0);
    const Pair pair = connect(*listener, context);
    std::array<std::byte, 8> memory{};
    void* data = memory.data();
    std::size_t bytes = memory.size();
    int tag = 9;
    void* receiving = nullptr;
    REQUIRE(abi::irecv(pair.receive.get(), 1, &data, &bytes, &tag, nullptr, nullptr, &receiving) == ncclSuccess);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      ::alarm(60);  // a call that hangs ends the process
      set_logger(nullptr);
      ::_exit(child_of(pair, *listener, receiving, context));
    }
    int status = -1;
    CHECK(eventually([&] { return ::waitpid(child, &status, WNOHANG) == child; }));
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    std::array<std::byte, 8> message{};
    void* sending = nullptr;
    REQUIRE(abi::isend(pair.send.get(), message.data(), bytes, tag, nullptr, nullptr, &sending) == ncclSuccess);
    int done = 0;
    for (void* request : {receiving, sending}) {
      CHECK(eventually([&] { return abi::test(request, &done, nullptr) != ncclSuccess || done == 1; }));
    }
    CHECK(done == 1);
    exchange(pair, 10'000);
  }
  CHECK(abi::finalize(context) == ncclSuccess);
}

TEST_CASE("makeVDevice: a device of two others carries messages over both") {
  const Topology topology;
  const Variable addresses("PARALET_ADDRESSES", "127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4");
  const Variable cut("PARALET_FLOWLET_BYTES", "10000");
  const Variable rate("PARALET_LINE_RATE", "1Gbit/s");
  void* context = nullptr;
  REQUIRE(abi::init(&context, nullptr, &Log::write, nullptr) == ncclSuccess);
  int made = -1;
  ncclNetVDeviceProps_v9_t first{.ndevs = 2, .devs = {0, 2}};
  CHECK(abi::make_vdevice(&made, &first) == ncclSuccess);
  CHECK(made == 4);
  ncclNetVDeviceProps_v12_t second{.ndevs = 2, .devs = {1, 3}};
  CHECK(abi::make_vdevice(&made, &second) == ncclSuccess);
  CHECK(made == 5);
  int count = 0;
  CHECK(abi::devices(&count) == ncclSuccess);
  CHECK(count == 6);
  ncclNetProperties_v12_t one{};
  ncclNetProperties_v12_t fused{};
  ncclNetProperties_v9_t old{};
  CHECK(abi::properties(1, &one) == ncclSuccess);
  CHECK(abi::properties(5, &fused) == ncclSuccess);
  CHECK(abi::properties_of(5, &old) == ncclSuccess);
  CHECK(std::string(fused.name) == "lo+lo");
  CHECK(fused.speed == 2 * one.speed);
  for (const auto& list : {std::span(fused.vProps.devs).first(2), std::span(old.vProps.devs).first(2)}) {
    CHECK(list[0] == 1);
    CHECK(list[1] == 3);
  }
  CHECK(fused.vProps.ndevs == 2);
  CHECK(old.vProps.ndevs == 2);
  CHECK(one.vProps.ndevs == 1);
  CHECK(one.vProps.devs[0] == 1);
  {
    const auto listener = Core::instance().listen(context, 4);
    const Pair pair = connect(*listener, context, 5);
    const auto over = [&](unsigned member) {
      std::uint64_t sum = 0;
      for (const LaneCounters& lane : pair.send->device()->counters().lanes) {
        sum += lane.member == member ? lane.flowlets : 0;
      }
      return sum;
    };
    CHECK(pair.send->device()->options().line_rate_bps == 2e9);
    CHECK(eventually([&] {
      exchange(pair, 300'000);
      return over(0) > 0 && over(1) > 0;
    }));
    const auto single = Core::instance().listen(context, 1);
    std::byte byte{1};
    const Memory memory{.device = single->device(), .base = &byte, .length = 1, .rkey = 7};
    CHECK_THROWS_WITH_AS(Core::instance().rkey_for(memory, pair.send->device()),
                         "the message's memory was registered with another device", PluginError);
  }
  CHECK(abi::finalize(context) == ncclSuccess);
}

TEST_CASE("makeVDevice: what cannot be fused is refused, and nothing changes") {
  const Topology topology;
  const Running running;
  int made = -1;
  const auto refusal = [&](ncclNetVDeviceProps_v12_t list) {
    Log::take(NCCL_LOG_WARN);
    CHECK(abi::make_vdevice(&made, &list) == ncclInvalidArgument);
    const auto warnings = Log::take(NCCL_LOG_WARN);
    REQUIRE(warnings.size() == 1);
    return warnings[0];
  };
  CHECK(refusal({.ndevs = 2, .devs = {0, 7}}) ==
        "NET/paralet: makeVDevice: these devices cannot be fused: device 7 does not exist");
  CHECK(refusal({.ndevs = 9, .devs = {}}).find("there must be 2 to 4, got 9") != std::string::npos);
  CHECK(refusal({.ndevs = -1, .devs = {}}).find("there must be 2 to 4, got 0") != std::string::npos);
  CHECK(abi::make_vdevice<ncclNetVDeviceProps_v12_t>(&made, nullptr) == ncclInvalidArgument);
  int count = 0;
  CHECK(abi::devices(&count) == ncclSuccess);
  CHECK(count == 2);
}

TEST_CASE("makeVDevice: with fewer lanes than NICs it is refused in the words of the parameter") {
  const Topology topology;
  const Variable addresses("PARALET_ADDRESSES", "127.0.0.1,127.0.0.2");
  const Variable lanes("PARALET_LANES", "1");
  void* context = nullptr;
  REQUIRE(abi::init(&context, nullptr, &Log::write, nullptr) == ncclSuccess);
  int made = -1;
  ncclNetVDeviceProps_v12_t list{.ndevs = 2, .devs = {0, 1}};
  Log::take(NCCL_LOG_WARN);
  CHECK(abi::make_vdevice(&made, &list) == ncclInvalidUsage);
  CHECK(Log::take(NCCL_LOG_WARN).at(0).find("PARALET_LANES must be at least 2") != std::string::npos);
  CHECK(abi::finalize(context) == ncclSuccess);
}

TEST_CASE("a fused device outlives the last finalize, until NCCL counts the devices of a fresh plugin") {
  const Topology topology;
  const auto count = [] {
    int out = 0;
    CHECK(abi::devices(&out) == ncclSuccess);
    return out;
  };
  ncclNetProperties_v12_t properties{};
  {
    const Running running;
    CHECK(count() == 2);
    int made = -1;
    ncclNetVDeviceProps_v12_t list{.ndevs = 2, .devs = {0, 1}};
    REQUIRE(abi::make_vdevice(&made, &list) == ncclSuccess);
  }
  {
    const Running running;
    CHECK(abi::properties(0, &properties) == ncclSuccess);
    CHECK(count() == 3);
    CHECK(abi::properties(2, &properties) == ncclSuccess);
    CHECK(properties.vProps.ndevs == 2);
  }
  const Running running;
  CHECK(count() == 2);
  CHECK(abi::properties(2, &properties) == ncclInvalidArgument);
}

TEST_CASE("64 connections to one peer share m QPs") {
  const Running running;
  const auto listener = Core::instance().listen(nullptr, 0);
  std::vector<Pair> pairs;
  pairs.reserve(64);
  for (int i = 0; i < 64; ++i) pairs.push_back(connect(*listener));
  for (const auto& device : {pairs[0].send->device(), pairs[0].receive->device()}) {
    const DeviceCounters counters = device->counters();
    CHECK(counters.connections == 64);
    CHECK(counters.peers == 1);
    CHECK(counters.lanes.size() == 4);
  }
}

TEST_CASE("a handle keeps the state of one connect at a time, and can then be used for another") {
  const Running running;
  const auto listener = Core::instance().listen(nullptr, 0);
  Handle handle{};
  std::ranges::copy(listener->handle(), handle.begin());
  const Handle fresh = handle;
  for (int i = 0; i < 3; ++i) {
    std::unique_ptr<DataComm> send;
    CHECK(eventually([&] { return (send = Core::instance().connect(nullptr, 1, handle)) != nullptr; }));
    CHECK(handle == fresh);
    std::unique_ptr<DataComm> receive;
    CHECK(eventually([&] { return (receive = Core::accept(*listener)) != nullptr; }));
  }
}

TEST_CASE("a connection that the peer closes before connect returns it is a comm whose messages fail") {
  const Running running;
  const auto listener = Core::instance().listen(nullptr, 0);
  Handle handle{};
  std::ranges::copy(listener->handle(), handle.begin());
  std::unique_ptr<DataComm> send = Core::instance().connect(nullptr, 1, handle);
  std::unique_ptr<DataComm> receive;
  CHECK(eventually([&] { return (receive = Core::accept(*listener)) != nullptr; }));
  receive.reset();  // returns when the connecting side has confirmed the close
  if (!send) send = Core::instance().connect(nullptr, 1, handle);
  REQUIRE(send != nullptr);
  std::byte byte{1};
  Operation* operation = nullptr;
  REQUIRE(send->post(std::array{Transfer{.data = &byte, .bytes = 1}}, &operation) == ncclSuccess);
  bool done = false;
  ncclResult_t result = ncclSuccess;
  CHECK(eventually([&] { return (result = send->test(*operation, &done, {})) != ncclSuccess || done; }));
  CHECK(result == ncclRemoteError);
}

TEST_CASE("NCCL is told the line rate that is set, on every back end") {
  for (const auto& [backend, rate, mbps] : {std::tuple("soft", "25e9", 25'000), std::tuple("tcp", "1000", 1)}) {
    const Variable chosen("PARALET_BACKEND", backend);
    const Variable set("PARALET_LINE_RATE", rate);
    const Running running;
    CHECK(Core::instance().properties(0).speed_mbps == mbps);
  }
}

TEST_CASE("foreign state in a handle is ignored") {
  const Running running;
  const auto listener = Core::instance().listen(nullptr, 0);
  Handle handle{};
  std::ranges::copy(listener->handle(), handle.begin());
  set_pending_connect(handle, 0xFEEDFACECAFEBEEF);
  std::unique_ptr<DataComm> send;
  CHECK(eventually([&] { return (send = Core::instance().connect(nullptr, 1, handle)) != nullptr; }));
}

TEST_CASE("a communicator with a traffic class has a device of its own, and its memory serves other classes") {
  const Running running;
  const ncclNetCommConfig_v12_t marked{.trafficClass = 104};
  void* context = nullptr;
  REQUIRE(abi::init(&context, &marked, &Log::write, nullptr) == ncclSuccess);
  {
    const auto listener = Core::instance().listen(context, 0);
    const auto plain = Core::instance().listen(nullptr, 0);
    CHECK(listener->device()->options().traffic_class == 104);
    CHECK(plain->device()->options().traffic_class == 0);
    CHECK(Core::instance().listen(context, 0)->device() == listener->device());
    std::byte byte{1};
    const Memory memory{.device = plain->device(), .base = &byte, .length = 1, .rkey = 7};
    CHECK(Core::instance().rkey_for(memory, plain->device()) == 7);
    const std::uint32_t other = Core::instance().rkey_for(memory, listener->device());
    CHECK(Core::instance().rkey_for(memory, listener->device()) == other);
    CHECK(memory.shared.size() == 1);
    const auto elsewhere = Core::instance().listen(nullptr, 1);
    CHECK_THROWS_WITH_AS(Core::instance().rkey_for(memory, elsewhere->device()),
                         "the message's memory was registered with another device", PluginError);
  }
  CHECK(abi::finalize(context) == ncclSuccess);
  const ncclNetCommConfig_v12_t wrong{.trafficClass = 256};
  Log::take(NCCL_LOG_WARN);
  CHECK(abi::init(&context, &wrong, &Log::write, nullptr) == ncclInvalidArgument);
  const auto warnings = Log::take(NCCL_LOG_WARN);
  REQUIRE(warnings.size() == 1);
  CHECK(
      warnings[0] ==
      "NET/paralet: init: the communicator's trafficClass 256 is not allowed: it must be 0 to 255, the IPv4 TOS byte");
}

TEST_CASE("setNetAttr: many peers at once get fewer lanes each, unless the user has chosen m") {
  const auto lanes = [](std::int32_t peers) {
    void* context = nullptr;
    REQUIRE(abi::init(&context, nullptr, &Log::write, nullptr) == ncclSuccess);
    ncclNetAttr_v12_t attributes{};
    attributes.sendCommAttr.maxConcurrentPeers = peers;
    CHECK(abi::set_net_attr(context, &attributes) == ncclSuccess);
    std::size_t out = 0;
    {
      const auto listener = Core::instance().listen(context, 0);
      const Pair pair = connect(*listener, context);
      out = pair.send->device()->counters().lanes.size();
    }
    CHECK(abi::finalize(context) == ncclSuccess);
    return out;
  };
  const Variable addresses("PARALET_ADDRESSES", "127.0.0.1,127.0.0.2");
  CHECK(lanes(NCCL_NET_ATTR_UNDEF) == 8);
  CHECK(lanes(4) == 8);
  CHECK(lanes(64) == 4);
  CHECK(lanes(10'000) == 2);
  const Variable chosen("PARALET_LANES", "6");
  CHECK(lanes(10'000) == 6);
}

TEST_CASE("a peer with fewer lanes than a connection wants is not used for it") {
  const Variable addresses("PARALET_ADDRESSES", "127.0.0.1,127.0.0.2");
  void* context = nullptr;
  REQUIRE(abi::init(&context, nullptr, &Log::write, nullptr) == ncclSuccess);
  {
    const auto listener = Core::instance().listen(context, 0);
    ncclNetAttr_v12_t attributes{};
    attributes.sendCommAttr.maxConcurrentPeers = 128;
    CHECK(abi::set_net_attr(context, &attributes) == ncclSuccess);
    const Pair narrow = connect(*listener, context);
    attributes.sendCommAttr.maxConcurrentPeers = 2;
    CHECK(abi::set_net_attr(context, &attributes) == ncclSuccess);
    const Pair wide = connect(*listener, context);
    CHECK(wide.send->device()->counters().lanes.size() == 2 + 8);
    attributes.sendCommAttr.maxConcurrentPeers = 128;
    CHECK(abi::set_net_attr(context, &attributes) == ncclSuccess);
    const Pair shared = connect(*listener, context);
    CHECK(shared.send->device()->counters().peers == 2);
  }
  CHECK(abi::finalize(context) == ncclSuccess);
}

TEST_CASE("deregistering the memory of a pending receive closes its comm and no other") {
  const Running running;
  const auto listener = Core::instance().listen(nullptr, 0);
  const Pair given_up = connect(*listener);
  const Pair other = connect(*listener);
  std::vector<std::byte> buffer(4096);
  void* memory = nullptr;
  REQUIRE(abi::reg_mr(given_up.receive.get(), buffer.data(), buffer.size(), NCCL_PTR_HOST, &memory) == ncclSuccess);
  const std::array receive = {
      Transfer{.data = buffer.data(), .bytes = buffer.size(), .memory = Core::instance().memories().find(memory)}};
  Operation* operation = nullptr;
  REQUIRE(given_up.receive->post(receive, &operation) == ncclSuccess);
  CHECK(abi::dereg_mr(given_up.receive.get(), memory) == ncclSuccess);
  CHECK(operation->parts[0]->state.load() == Request::State::kFailed);

  std::vector<std::byte> from(100, std::byte{7});
  std::vector<std::byte> to(100);
  Operation* sending = nullptr;
  Operation* receiving = nullptr;
  REQUIRE(other.receive->post(std::array{Transfer{.data = to.data(), .bytes = to.size()}}, &receiving) == ncclSuccess);
  REQUIRE(other.send->post(std::array{Transfer{.data = from.data(), .bytes = from.size()}}, &sending) == ncclSuccess);
  bool done = false;
  CHECK(eventually([&] { return other.receive->test(*receiving, &done, {}) == ncclSuccess && done; }));
  CHECK(to == from);
  CHECK(eventually([&] { return other.send->test(*sending, &done, {}) == ncclSuccess && done; }));
}

}  // namespace
}  // namespace paralet::plugin
