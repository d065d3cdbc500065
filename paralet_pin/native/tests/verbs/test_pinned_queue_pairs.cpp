// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "given_ports.hpp"
#include "verbs/pinned_queue_pairs.hpp"
#include "wire/flow_label.hpp"

namespace paralet::pin {
namespace {

constexpr std::uint32_t kGidIndex = 3;
constexpr int kReadyToReceive = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int kReadyToSend = IBV_QP_STATE | IBV_QP_SQ_PSN;

/// What the library under libibverbs' name was told, and what it answers.
struct Driver {
  std::vector<ibv_qp_attr> modified;
  std::vector<std::uint16_t> ports_set;
  int modify_error = 0;
  int destroy_error = 0;
  int set_port_error = 0;
  ibv_gid_type gid_type = IBV_GID_TYPE_ROCE_V2;
};
Driver driver;

/// All that ibv_qp_attr has had since the ABI of 2006.
std::string bytes_of(const ibv_qp_attr& attributes) {
  return {reinterpret_cast<const char*>(&attributes), offsetof(ibv_qp_attr, rate_limit)};
}

VerbsCalls mlx5() {
  return {.modify_qp =
              [](ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
                driver.modified.push_back(*attributes);
                if (driver.modify_error == 0 && (mask & IBV_QP_STATE) != 0) qp->state = attributes->qp_state;
                return driver.modify_error;
              },
          .destroy_qp = [](ibv_qp* /*qp*/) { return driver.destroy_error; },
          .query_gid =
              [](ibv_context*, std::uint32_t, std::uint32_t index, ibv_gid_entry* out, std::uint32_t, std::size_t) {
                if (index != kGidIndex) return ENODATA;
                const IpAddress address(0x0A000001);
                std::memcpy(out->gid.raw, address.bytes().data(), sizeof out->gid.raw);
                out->gid_type = driver.gid_type;
                return 0;
              },
          .set_port =
              [](ibv_qp* /*qp*/, std::uint16_t port) {
                if (driver.set_port_error == 0) driver.ports_set.push_back(port);
                return driver.set_port_error;
              }};
}

VerbsCalls without_mlx5() {
  VerbsCalls out = mlx5();
  out.set_port = nullptr;
  return out;
}

/// A program with queue pairs, of which the plan has ports.
struct Program {
  explicit Program(const VerbsCalls& calls, std::vector<std::uint16_t> planned = {50001, 50002, 50003})
      : pairs(ports, calls, {.networks = Networks("10.0.0.0/8"), .wait = kSecond}) {
    driver = {};
    ports.ports = std::move(planned);
    std::strcpy(device.name, "mlx5_0");
    context.device = &device;
    for (ibv_qp& each : qps) {
      each.context = &context;
      each.qp_num = static_cast<std::uint32_t>(26 + (&each - qps.data()));
      each.state = IBV_QPS_INIT;
    }
  }
  /// The attributes of a connection to 10.0.0.2.
  static ibv_qp_attr ready() {
    ibv_qp_attr out{};
    out.qp_state = IBV_QPS_RTR;
    out.ah_attr.is_global = 1;
    out.ah_attr.port_num = 1;
    out.ah_attr.grh.sgid_index = kGidIndex;
    out.ah_attr.grh.hop_limit = 255;
    const IpAddress address(0x0A000002);
    std::memcpy(out.ah_attr.grh.dgid.raw, address.bytes().data(), sizeof out.ah_attr.grh.dgid.raw);
    return out;
  }
  int connect(ibv_qp& qp, ibv_qp_attr attributes = ready(), std::uint32_t given_label = 0) {
    return pairs.modify(&qp, &attributes, kReadyToReceive, given_label);
  }
  int change(ibv_qp& qp, ibv_qp_state state) {
    ibv_qp_attr attributes{};
    attributes.qp_state = state;
    return pairs.modify(&qp, &attributes, kReadyToSend, 0);
  }
  /// The flow label of the last change.
  static std::uint32_t label() { return driver.modified.back().ah_attr.grh.flow_label; }
  std::string why() { return ports.refused.empty() ? "" : ports.refused.back().second; }

  GivenPorts ports;
  PinnedQueuePairs pairs;
  ibv_device device{};
  ibv_context context{};
  std::array<ibv_qp, 3> qps{};
};

TEST_CASE("each queue pair of two hosts gets a planned port of its own by its flow label, until it is destroyed") {
  Program program(without_mlx5());
  for (ibv_qp& each : program.qps) {
    CHECK(program.connect(each) == 0);
    CHECK(port_of_flow_label(Program::label()) == 50001 + (&each - program.qps.data()));
    CHECK(program.change(each, IBV_QPS_RTS) == 0);
  }
  REQUIRE(program.ports.asked.size() == 3);
  const Flow& flow = program.ports.asked[0];
  CHECK(flow.protocol == Protocol::kUdp);
  CHECK(flow.local == IpAddress(0x0A000001));
  CHECK(flow.remote == IpAddress(0x0A000002));
  CHECK(flow.remote_port == 4791);
  CHECK(flow.declared_bytes > 0);
  CHECK(flow.what == "queue pair 0x1a of mlx5_0");
  CHECK(program.ports.held.size() == 3);
  for (ibv_qp& each : program.qps) CHECK(program.pairs.destroy(&each) == 0);
  CHECK(program.ports.held.empty());
  CHECK_FALSE(program.ports.moved);  // no thread where nothing could follow a move
}

TEST_CASE("all other attributes reach the library as they are, and the program's own stay as they are") {
  Program program(without_mlx5());
  ibv_qp_attr attributes = Program::ready();
  attributes.dest_qp_num = 77;
  attributes.path_mtu = IBV_MTU_2048;
  attributes.ah_attr.grh.traffic_class = 106;
  const std::string before = bytes_of(attributes);
  CHECK(program.pairs.modify(program.qps.data(), &attributes, kReadyToReceive, 0) == 0);
  CHECK(bytes_of(attributes) == before);
  ibv_qp_attr changed = driver.modified.back();
  CHECK(changed.ah_attr.grh.flow_label == flow_label_of_port(50001));
  changed.ah_attr.grh.flow_label = 0;
  CHECK(bytes_of(changed) == before);
}

TEST_CASE("queue pairs that cannot be pinned connect as they are, and the reason is told") {
  Program program(without_mlx5());
  ibv_qp& qp = program.qps[0];
  const auto connects = [&](const ibv_qp_attr& attributes, const std::string& why) {
    CHECK(program.connect(qp, attributes) == 0);
    CHECK(Program::label() == attributes.ah_attr.grh.flow_label);
    CHECK(program.why() == why);
  };
  ibv_qp_attr attributes = Program::ready();
  attributes.ah_attr.is_global = 0;
  connects(attributes, "it has no GID: InfiniBand has no source ports");
  attributes = Program::ready();
  attributes.ah_attr.grh.flow_label = 0x123;
  connects(attributes, "its program sets a flow label of its own");
  attributes = Program::ready();
  attributes.ah_attr.grh.sgid_index = kGidIndex + 1;
  connects(attributes, "its own GID cannot be read");
  for (const auto type : {IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_IB}) {
    driver.gid_type = type;
    connects(Program::ready(), "its GID is not of RoCEv2");
  }
  driver.gid_type = IBV_GID_TYPE_ROCE_V2;
  attributes = Program::ready();
  attributes.ah_attr.grh.dgid = {.raw = {0xFE, 0x80}};
  connects(attributes, "its GID is link-local: give its program the index of another one");
  CHECK(program.ports.asked.empty());
  program.ports.ports = {49151};
  connects(Program::ready(), "RoCEv2 has no source ports below 49152");
  CHECK(program.ports.held.empty());
  CHECK(program.ports.refused.back().first == "queue pair 0x1a of mlx5_0");
}

TEST_CASE("without a plan queue pairs connect as if nothing were loaded") {
  Program program(without_mlx5(), {});
  CHECK(program.connect(program.qps[0]) == 0);
  CHECK(Program::label() == 0);
  CHECK(program.pairs.destroy(program.qps.data()) == 0);
}

TEST_CASE("peers that are not of the fabric's networks are not asked for") {
  Program program(without_mlx5());
  ibv_qp_attr attributes = Program::ready();
  attributes.ah_attr.grh.dgid.raw[12] = 11;
  CHECK(program.connect(program.qps[0], attributes) == 0);
  CHECK(Program::label() == 0);
  CHECK(program.ports.asked.empty());
  CHECK(program.why().empty());
}

TEST_CASE("where mlx5's call fails once, queue pairs stay where they are") {
  Program program(mlx5());
  CHECK(program.connect(program.qps[0]) == 0);
  CHECK(program.change(program.qps[0], IBV_QPS_RTS) == 0);
  driver.set_port_error = EIO;
  program.ports.move(50001, 60000);
  driver.set_port_error = 0;
  CHECK(driver.ports_set == std::vector<std::uint16_t>{50001});
}

TEST_CASE("before rdma-core 32 nothing is pinned") {
  VerbsCalls calls = mlx5();
  calls.query_gid = nullptr;
  Program program(calls);
  CHECK(program.connect(program.qps[0]) == 0);
  CHECK(Program::label() == 0);
  CHECK(program.why() == "its libibverbs is older than rdma-core 32");
}

TEST_CASE("a label that rdma_cm has given is not the program's own") {
  Program program(without_mlx5());
  ibv_qp_attr attributes = Program::ready();
  attributes.ah_attr.grh.flow_label = 0x456;
  CHECK(program.connect(program.qps[0], attributes, 0x456) == 0);
  CHECK(port_of_flow_label(Program::label()) == 50001);
  CHECK(program.connect(program.qps[1], attributes, 0x457) == 0);
  CHECK(Program::label() == 0x456);
}

TEST_CASE("what UCX fills in for a label is not the program's own") {
  Program program(without_mlx5());
  ibv_qp_attr attributes = Program::ready();
  for (std::uint32_t path = 0; path < 2; ++path) {
    attributes.ah_attr.grh.flow_label = ~path;
    CHECK(program.connect(program.qps[path], attributes) == 0);
    CHECK(port_of_flow_label(Program::label()) == 50001 + path);
  }
}

TEST_CASE("changes without a state, without an address or with attributes to come pass through") {
  Program program(without_mlx5());
  ibv_qp_attr attributes = Program::ready();
  ibv_qp* qp = program.qps.data();
  for (const int mask : {IBV_QP_AV | IBV_QP_PATH_MTU, int{IBV_QP_STATE}, kReadyToReceive | (1 << 29)}) {
    CHECK(program.pairs.modify(qp, &attributes, mask, 0) == 0);
    CHECK(Program::label() == 0);
  }
  CHECK(program.ports.held.empty());
  CHECK(program.why() == "its program sets unknown attributes");
}

TEST_CASE("errors of the library are the program's, with errno, and the port goes back") {
  Program program(without_mlx5());
  driver.modify_error = EHOSTUNREACH;
  errno = ERANGE;
  CHECK(program.connect(program.qps[0]) == EHOSTUNREACH);
  CHECK(errno == ERANGE);
  CHECK(program.ports.held.empty());
  CHECK(driver.modified.size() == 1);
  driver.modify_error = 0;
  CHECK(program.connect(program.qps[0]) == 0);
  CHECK(program.ports.held.size() == 1);
  driver.destroy_error = EBUSY;
  CHECK(program.pairs.destroy(program.qps.data()) == EBUSY);
  CHECK(program.ports.held.size() == 1);
  driver.destroy_error = 0;
  CHECK(program.pairs.destroy(program.qps.data()) == 0);
  CHECK(program.ports.held.empty());
}

TEST_CASE("a queue pair that is reset or connected again gives its port back") {
  Program program(without_mlx5());
  ibv_qp& qp = program.qps[0];
  CHECK(program.connect(qp) == 0);
  CHECK(program.change(qp, IBV_QPS_RESET) == 0);
  CHECK(program.ports.held.empty());
  CHECK(program.connect(qp) == 0);
  CHECK(program.connect(qp) == 0);
  CHECK(program.ports.held.size() == 1);
  CHECK(port_of_flow_label(Program::label()) == 50003);
}

TEST_CASE("mlx5's call sets the port when the queue pair is ready to send, and follows the plan") {
  Program program(mlx5());
  ibv_qp& qp = program.qps[0];
  CHECK(program.connect(qp) == 0);
  CHECK(driver.ports_set.empty());
  CHECK(program.change(qp, IBV_QPS_RTS) == 0);
  CHECK(program.change(qp, IBV_QPS_RTS) == 0);  // such a change may set other attributes
  CHECK(driver.ports_set == std::vector<std::uint16_t>{50001});
  program.ports.move(50001, 60000);
  CHECK(driver.ports_set.back() == 60000);
  program.ports.move(60000, 1024);  // RoCEv2 has no such port
  CHECK(driver.ports_set.back() == 60000);
  CHECK(program.pairs.destroy(&qp) == 0);
  CHECK_FALSE(program.ports.moved(1, 61000));
  CHECK(driver.ports_set.size() == 2);
}

TEST_CASE("a move before a queue pair is ready to send counts then") {
  Program program(mlx5());
  CHECK(program.connect(program.qps[0]) == 0);
  CHECK(program.change(program.qps[0], IBV_QPS_RTS) == 0);
  CHECK(program.connect(program.qps[1]) == 0);
  program.ports.move(50002, 60000);
  CHECK(driver.ports_set == std::vector<std::uint16_t>{50001});
  CHECK(program.change(program.qps[1], IBV_QPS_RTS) == 0);
  CHECK(driver.ports_set == std::vector<std::uint16_t>{50001, 60000});
  program.ports.while_asking = [&](std::uint64_t id) { CHECK(program.ports.moved(id, 61000)); };
  CHECK(program.connect(program.qps[2]) == 0);
  CHECK(port_of_flow_label(Program::label()) == 61000);
}

TEST_CASE("where mlx5's call fails queue pairs go on with the port of their label") {
  Program program(mlx5());
  driver.set_port_error = EOPNOTSUPP;
  errno = ERANGE;
  CHECK(program.connect(program.qps[0]) == 0);
  CHECK(program.change(program.qps[0], IBV_QPS_RTS) == 0);
  CHECK(errno == ERANGE);
  CHECK(driver.ports_set.empty());
  CHECK_FALSE(program.ports.moved);  // no thread where nothing could follow
  CHECK(port_of_flow_label(driver.modified.front().ah_attr.grh.flow_label) == 50001);
}

TEST_CASE("a forked child uses the library alone, also while another thread of its parent connects") {
  Program program(without_mlx5());
  program.ports.while_asking = [&](std::uint64_t /*id*/) {
    const pid_t child = ::fork();
    if (child == 0) {
      const bool connects = program.connect(program.qps[1]) == 0 && Program::label() == 0;
      ::_exit(connects && program.pairs.destroy(&program.qps[1]) == 0 ? 0 : 1);
    }
    int status = -1;
    CHECK(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  };
  CHECK(program.connect(program.qps[0]) == 0);
  CHECK(program.ports.asked.size() == 1);
}

}  // namespace
}  // namespace paralet::pin
