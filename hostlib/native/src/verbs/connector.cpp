// SPDX-License-Identifier: Apache-2.0
#include "verbs/connector.hpp"

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "base/random.hpp"
#include "verbs/driver.hpp"
#include "verbs/memory.hpp"
#include "verbs/send_queue.hpp"
#include "wire/flow_label.hpp"
#include "wire/wire.hpp"

namespace paralet::verbs {
namespace {

constexpr std::uint8_t kHopLimit = 64;
constexpr std::uint8_t kMinRnrTimer = 12;  // 0.64 ms, as in docs/protocol.md
constexpr std::uint8_t kRetryForEver = 7;
constexpr std::uint8_t kMaxRetries = 6;  // the kernel's rxe takes 7 for "without end"
constexpr int kReadyToReceive = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int kReadyToSend =
    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;

struct Retries {
  std::uint8_t timeout_code = 1;  ///< 4.096 us * 2^code
  std::uint8_t count = 1;
};

/// The shortest timeout that is at least the one asked for, and as many retries as fill the retry time.
Retries retries(const VerbsOptions& options) {
  const Nanos timeout = options.min_timeout.value_or(options.retry_time / (kMaxRetries + 1));
  Retries out;
  const auto length = [&] { return static_cast<Nanos>(4096) << out.timeout_code; };
  while (out.timeout_code < 31 && length() < timeout) ++out.timeout_code;
  out.count = static_cast<std::uint8_t>(std::clamp<Nanos>(options.retry_time / length() - 1, 1, kMaxRetries));
  return out;
}

}  // namespace

Connector::Connector(const VerbsOptions& options, const OpenPort& port, std::uint32_t path_mtu)
    : library_(VerbsLibrary::load()),
      options_(options),
      port_(port),
      path_mtu_(path_mtu),
      method_(ignores_flow_label(port.device) ? PortMethod::kNone : PortMethod::kFlowLabel) {}

Connector::Created Connector::create(ibv_pd* pd, ibv_cq* completions, ibv_srq* receives, int access) const {
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = completions;
  init.srq = receives;
  init.cap.max_send_wr = kSendDepth;
  init.cap.max_send_sge = 1;
  init.cap.max_inline_data = kInlineBytes;
  init.qp_type = IBV_QPT_RC;
  QpHandle qp(library_.create_qp(pd, &init));
  if (!qp) fail("cannot create a queue pair", errno);
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = port_.number;
  attributes.pkey_index = options_.pkey_index;
  attributes.qp_access_flags = static_cast<unsigned>(access);
  const int error =
      library_.modify_qp(qp.get(), &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error != 0) fail("cannot initialize a queue pair", error);
  const QpIdentity identity{.qpn = qp->qp_num, .first_psn = random_u32() & wire::kPsnMask};
  return {
      .handle = std::move(qp), .identity = identity, .inline_bytes = std::min(kInlineBytes, init.cap.max_inline_data)};
}

std::optional<std::uint16_t> Connector::connect(ibv_qp* qp, const QpIdentity& identity, const RemoteQp& remote,
                                                std::uint16_t source_port) {
  if (source_port < kFirstRocePort) return std::nullopt;
  if (remote.udp_port != wire::kRocePort) {
    throw DeviceError(format_address(remote.address) + " receives on UDP port " + std::to_string(remote.udp_port) +
                      ", an RDMA device sends to 4791 only: give each process over there an address of its own");
  }
  if (remote.ece.vendor_id != 0 && library_.set_ece != nullptr) {
    ibv_ece ece{.vendor_id = remote.ece.vendor_id, .options = remote.ece.options, .comp_mask = remote.ece.comp_mask};
    library_.set_ece(qp, &ece);  // an error is no harm: both sides work without
  }
  ibv_qp_attr ready = ready_to_receive(gid_of(remote.address), source_port);
  ready.path_mtu = mtu_of(remote.path_mtu);
  ready.dest_qp_num = remote.qpn;
  ready.rq_psn = remote.first_psn;
  if (const int error = library_.modify_qp(qp, &ready, kReadyToReceive); error != 0) {
    fail("no path to " + format_address(remote.address), error);
  }
  start_sending(qp, identity);
  if (library_.mlx5_modify_qp_udp_sport != nullptr && library_.mlx5_modify_qp_udp_sport(qp, source_port) == 0) {
    method_ = PortMethod::kModifyQp;  // sets the port exactly, where a flow label is a request
    return source_port;
  }
  return method_ == PortMethod::kNone ? std::uint16_t{0} : source_port;
}

void Connector::connect_to_itself(ibv_qp* qp, const QpIdentity& identity) const {
  ibv_qp_attr ready = ready_to_receive(port_.gid, kFirstRocePort);
  ready.path_mtu = mtu_of(path_mtu_);
  ready.dest_qp_num = identity.qpn;
  ready.rq_psn = identity.first_psn;
  ready.max_dest_rd_atomic = 1;
  if (const int error = library_.modify_qp(qp, &ready, kReadyToReceive); error != 0) {
    fail("no path from " + port_.device + " to itself", error);
  }
  start_sending(qp, identity);
}

bool Connector::moves(std::uint16_t source_port) const {
  // The flow label of a queue pair that sends is fixed. Only the vendor's call changes the port.
  return method_ == PortMethod::kModifyQp && source_port >= kFirstRocePort;
}

bool Connector::move(ibv_qp* qp, std::uint16_t source_port) const {
  return library_.mlx5_modify_qp_udp_sport(qp, source_port) == 0;
}

Ece Connector::ece(ibv_qp* qp) const {
  ibv_ece ece{};
  if (library_.query_ece == nullptr || library_.query_ece(qp, &ece) != 0) return {};
  return {.vendor_id = ece.vendor_id, .options = ece.options, .comp_mask = ece.comp_mask};
}

ibv_qp_attr Connector::ready_to_receive(const ibv_gid& gid, std::uint16_t source_port) const {
  ibv_qp_attr out{};
  out.qp_state = IBV_QPS_RTR;
  out.min_rnr_timer = kMinRnrTimer;
  out.ah_attr.is_global = 1;
  out.ah_attr.grh.dgid = gid;
  out.ah_attr.grh.flow_label = flow_label_of_port(source_port);
  out.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(port_.gid_index);
  out.ah_attr.grh.hop_limit = kHopLimit;
  out.ah_attr.grh.traffic_class = options_.traffic_class;
  out.ah_attr.sl = options_.service_level;
  out.ah_attr.port_num = port_.number;
  return out;
}

void Connector::start_sending(ibv_qp* qp, const QpIdentity& identity) const {
  ibv_qp_attr send{};
  send.qp_state = IBV_QPS_RTS;
  send.max_rd_atomic = 1;
  const Retries timing = retries(options_);
  send.timeout = timing.timeout_code;
  send.retry_cnt = timing.count;
  send.rnr_retry = kRetryForEver;
  send.sq_psn = identity.first_psn;
  if (const int error = library_.modify_qp(qp, &send, kReadyToSend); error != 0) {
    fail("cannot start a queue pair", error);
  }
}

}  // namespace paralet::verbs
