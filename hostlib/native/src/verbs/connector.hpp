// SPDX-License-Identifier: Apache-2.0
// Creates the queue pairs of one port and connects them: the states INIT, RTR and RTS (IBTA 10.3.1).
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "backend/backend.hpp"
#include "verbs/port.hpp"
#include "verbs/verbs_library.hpp"
#include "verbs/verbs_options.hpp"

namespace paralet::verbs {

/// Any thread may use it.
class Connector {
 public:
  /// `port` must outlive the connector.
  Connector(const VerbsOptions& options, const OpenPort& port, std::uint32_t path_mtu);

  /// Payload bytes of the largest packet.
  [[nodiscard]] std::uint32_t path_mtu() const { return path_mtu_; }

  struct Created {
    QpHandle handle;
    QpIdentity identity;
    std::uint32_t inline_bytes = 0;  ///< payload that may go with the request itself
  };
  /// A queue pair in state INIT. `access` are the IBV_ACCESS flags that the peer gets. Throws DeviceError.
  Created create(ibv_pd* pd, ibv_cq* completions, ibv_srq* receives, int access) const;

  /// Connects a queue pair and returns the source port that it has, 0 where the driver chooses. Nothing when no flow
  /// label gives `source_port`. Throws DeviceError.
  std::optional<std::uint16_t> connect(ibv_qp* qp, const QpIdentity& identity, const RemoteQp& remote,
                                       std::uint16_t source_port);
  /// Connects a queue pair to itself, for READs of this port's own memory. Throws DeviceError.
  void connect_to_itself(ibv_qp* qp, const QpIdentity& identity) const;
  /// Whether `move` may give a connected queue pair this source port. Elsewhere that needs another queue pair.
  [[nodiscard]] bool moves(std::uint16_t source_port) const;
  /// Changes the source port of a connected queue pair. False when the NIC refuses it.
  [[nodiscard]] bool move(ibv_qp* qp, std::uint16_t source_port) const;
  /// How source ports are set; exact once the first queue pair is connected.
  [[nodiscard]] PortMethod method() const { return method_; }

  /// What the queue pair offers before it is connected, and what was agreed on afterwards.
  [[nodiscard]] Ece ece(ibv_qp* qp) const;

 private:
  [[nodiscard]] ibv_qp_attr ready_to_receive(const ibv_gid& gid, std::uint16_t source_port) const;
  void start_sending(ibv_qp* qp, const QpIdentity& identity) const;

  const VerbsLibrary& library_;
  VerbsOptions options_;
  const OpenPort& port_;
  std::uint32_t path_mtu_;
  std::atomic<PortMethod> method_;
};

}  // namespace paralet::verbs
