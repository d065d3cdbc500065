// SPDX-License-Identifier: Apache-2.0
#include "verbs/pinned_queue_pairs.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.hpp"
#include "base/ip_address.hpp"
#include "kept_errno.hpp"
#include "verbs/driver.hpp"
#include "wire/flow_label.hpp"

namespace paralet::pin {
namespace {

constexpr std::uint16_t kRocePort = 4791;
constexpr std::uint32_t kHighestFlowLabel = 0xFFFFF;
/// What a queue pair is announced with, since nobody counts its bytes: enough to be an elephant.
constexpr std::uint64_t kDeclaredBytes = std::uint64_t{1} << 30;
/// The attributes that ibv_modify_qp has had since ABI version 1.1. Later ones enlarge ibv_qp_attr.
constexpr int kKnownAttributes = (IBV_QP_DEST_QPN << 1) - 1;

IpAddress pin_address_of(const ibv_gid& gid) {
  IpAddress::Bytes bytes{};
  std::memcpy(bytes.data(), gid.raw, bytes.size());
  return IpAddress(bytes);
}

/// "queue pair 0x1a of mlx5_0", cut where that is too long for Flow::what.
std::string name_of(const ibv_qp& qp) {
  constexpr std::size_t kLongest = 47;
  std::array<char, sizeof "queue pair 0x12345678 of " + IBV_SYSFS_NAME_MAX> text{};
  std::snprintf(text.data(), text.size(), "queue pair %#x of %s", qp.qp_num, qp.context->device->name);
  return std::string(text.data()).substr(0, kLongest);
}

}  // namespace

PinnedQueuePairs::PinnedQueuePairs(PlannedPorts& ports, const VerbsCalls& calls, const ProgramSettings& settings)
    : ports_(ports), calls_(calls), settings_(settings), process_(::getpid()) {}

int PinnedQueuePairs::modify(ibv_qp* qp, ibv_qp_attr* attributes, int mask, std::uint32_t given_label) {
  if ((mask & IBV_QP_STATE) == 0 || ::getpid() != process_) return calls_.modify_qp(qp, attributes, mask);
  if (attributes->qp_state == IBV_QPS_RTR) return connect(qp, attributes, mask, given_label);
  const ibv_qp_state before = qp->state;
  const int result = calls_.modify_qp(qp, attributes, mask);
  if (result != 0) return result;
  const KeptErrno kept;
  if (attributes->qp_state == IBV_QPS_RTS && before == IBV_QPS_RTR) start(qp);
  if (attributes->qp_state == IBV_QPS_RESET) give_back(qp);
  return result;
}

int PinnedQueuePairs::connect(ibv_qp* qp, ibv_qp_attr* attributes, int mask, std::uint32_t given_label) {
  const std::optional<std::uint16_t> port = [&]() -> std::optional<std::uint16_t> {
    const KeptErrno kept;
    try {
      give_back(qp);  // of a former connection, which the program has ended in a way that is not seen here
      const std::optional<Flow> flow = flow_of(*qp, *attributes, mask, given_label);
      return flow ? port_for(qp, *flow) : std::nullopt;
    } catch (const std::exception&) {  // no memory
      return std::nullopt;
    }
  }();
  if (!port) return calls_.modify_qp(qp, attributes, mask);
  // A copy: the program may use its attributes in several threads. Its header may be older, without `rate_limit`.
  ibv_qp_attr labelled{};
  std::memcpy(&labelled, attributes, offsetof(ibv_qp_attr, rate_limit));
  labelled.ah_attr.grh.flow_label = flow_label_of_port(*port);
  const int result = calls_.modify_qp(qp, &labelled, mask);
  const KeptErrno kept;
  if (result != 0) give_back(qp);
  return result;
}

std::optional<Flow> PinnedQueuePairs::flow_of(const ibv_qp& qp, const ibv_qp_attr& attributes, int mask,
                                              std::uint32_t given_label) const {
  if ((mask & IBV_QP_AV) == 0) return std::nullopt;  // only with an address can the change succeed
  const ibv_ah_attr& address = attributes.ah_attr;
  Flow flow{.protocol = Protocol::kUdp, .remote_port = kRocePort, .declared_bytes = kDeclaredBytes};
  flow.what = name_of(qp);
  const auto refuse = [&](std::string_view why) {
    ports_.not_pinned(flow, why);
    return std::nullopt;
  };
  if (address.is_global == 0) return refuse("it has no GID: InfiniBand has no source ports");
  flow.remote = pin_address_of(address.grh.dgid);
  if (!settings_.networks.has(flow.remote) && !flow.remote.is_link_local()) return std::nullopt;
  if (calls_.query_gid == nullptr) return refuse("its libibverbs is older than rdma-core 32");
  ibv_gid_entry own{};
  if (calls_.query_gid(qp.context, address.port_num, address.grh.sgid_index, &own, 0, sizeof own) != 0) {
    return refuse("its own GID cannot be read");
  }
  flow.local = pin_address_of(own.gid);
  if (own.gid_type != IBV_GID_TYPE_ROCE_V2) return refuse("its GID is not of RoCEv2");
  if (flow.remote.is_link_local()) return refuse("its GID is link-local: give its program the index of another one");
  const std::uint32_t label = address.grh.flow_label;
  // UCX fills in more bits than a label has, in every address over RoCE (uct_ib_iface_fill_ah_attr_from_gid_lid).
  const bool is_chosen = label != 0 && label != given_label && label <= kHighestFlowLabel;
  if (is_chosen) return refuse("its program sets a flow label of its own");
  if ((mask & ~kKnownAttributes) != 0) return refuse("its program sets unknown attributes");
  if (paralet::verbs::ignores_flow_label(qp.context->device->name)) return refuse("its driver ignores flow labels");
  return flow;
}

std::optional<std::uint16_t> PinnedQueuePairs::port_for(const ibv_qp* qp, const Flow& flow) {
  {
    const MutexLock lock(mutex_);
    ++asking_;
  }
  const std::optional<Planned> planned = ports_.ask(flow, now() + settings_.wait);
  const bool in_range = planned && planned->port >= kFirstRocePort;
  std::optional<std::uint16_t> port;
  {
    const MutexLock lock(mutex_);
    if (in_range) {
      const auto moved = early_moves_.find(planned->id);
      port = moved != early_moves_.end() ? moved->second : planned->port;
      pins_[qp] = {.id = planned->id, .port = *port};
    }
    if (--asking_ == 0) early_moves_.clear();
  }
  if (planned && !in_range) {
    ports_.give_back(planned->id);
    ports_.not_pinned(flow, "RoCEv2 has no source ports below 49152");
  }
  return port;
}

void PinnedQueuePairs::start(ibv_qp* qp) {
  {
    const MutexLock lock(mutex_);
    const auto found = pins_.find(qp);
    if (found == pins_.end()) return;
    found->second.sends = true;
    // Sets the port exactly, where a flow label is a request. An error: no mlx5 device, and the label has set the port.
    if (calls_.set_port == nullptr || calls_.set_port(qp, found->second.port) != 0) return;
  }
  // Moves cost a thread, which only a program with such a device gets.
  if (follows_.exchange(true)) return;
  ports_.on_move([this](std::uint64_t id, std::uint16_t port) { return move(id, port); });
}

bool PinnedQueuePairs::move(std::uint64_t id, std::uint16_t port) {
  if (port < kFirstRocePort) return false;
  const KeptErrno kept;
  const MutexLock lock(mutex_);
  const auto found = std::ranges::find(pins_, id, [](const auto& each) { return each.second.id; });
  if (found == pins_.end()) {
    if (asking_ > 0) early_moves_[id] = port;
    return asking_ > 0;
  }
  Pin& pin = found->second;
  // The program may destroy the queue pair only after this, since that needs the mutex.
  if (pin.sends && calls_.set_port(const_cast<ibv_qp*>(found->first), port) != 0) return false;
  pin.port = port;
  return true;
}

int PinnedQueuePairs::destroy(ibv_qp* qp) {
  if (::getpid() != process_) return calls_.destroy_qp(qp);
  // Out of the table first: from here on no move may touch it.
  const std::optional<Pin> pin = take(qp);
  const int result = calls_.destroy_qp(qp);
  if (!pin) return result;
  const KeptErrno kept;
  if (result == 0) {
    ports_.give_back(pin->id);
  } else {
    const MutexLock lock(mutex_);
    pins_.emplace(qp, *pin);
  }
  return result;
}

std::optional<PinnedQueuePairs::Pin> PinnedQueuePairs::take(const ibv_qp* qp) {
  const MutexLock lock(mutex_);
  const auto node = pins_.extract(qp);
  return node ? std::optional(node.mapped()) : std::nullopt;
}

void PinnedQueuePairs::give_back(const ibv_qp* qp) {
  if (const std::optional<Pin> pin = take(qp)) ports_.give_back(pin->id);
}

}  // namespace paralet::pin
