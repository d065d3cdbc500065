// SPDX-License-Identifier: Apache-2.0
// Several back ends on one address, the shards, each with a part of the QPs and on a core of its own
// (docs/notes/sharding.md). A QPN names its shard (shard_of). The first shard runs in the caller, the others on
// threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "backend/backend.hpp"
#include "base/file_descriptor.hpp"

namespace paralet {

class ShardedBackend final : public Backend {
 public:
  /// 2 to kMaxShards back ends of one kind, which give the QPNs of QpnShare{i, n}. Throws DeviceError.
  explicit ShardedBackend(std::vector<std::unique_ptr<Backend>> shards);

  [[nodiscard]] Transport transport() const override { return first().transport(); }
  [[nodiscard]] std::uint16_t udp_port() const override { return first().udp_port(); }
  [[nodiscard]] unsigned shards() const override { return static_cast<unsigned>(shards_.size()); }
  [[nodiscard]] std::vector<std::uint16_t> further_ports() const override;
  [[nodiscard]] std::uint32_t max_path_mtu() const override { return first().max_path_mtu(); }
  [[nodiscard]] std::uint32_t path_mtu_to(unsigned member, const IpAddress& remote) const override {
    return first().path_mtu_to(member, remote);
  }
  std::uint32_t register_memory(std::byte* base, std::uint64_t length) override;
  void deregister_memory(std::uint32_t rkey) override;
  void retire_memory(std::uint32_t rkey) override;
  QpIdentity create_qp() override { return create_qp_on(0, 0); }
  QpIdentity create_qp_on(unsigned member, unsigned lane) override;
  [[nodiscard]] Ece ece(std::uint32_t qpn) const override { return of(qpn).ece(qpn); }
  [[nodiscard]] std::uint16_t max_ip_id() const override { return first().max_ip_id(); }
  bool connect_qp(std::uint32_t qpn, const RemoteQp& remote, std::uint16_t source_port) override {
    return of(qpn).connect_qp(qpn, remote, source_port);
  }
  void adopt_qp(std::uint32_t qpn) override { of(qpn).adopt_qp(qpn); }
  PortChange set_port(std::uint32_t qpn, std::uint16_t port) override { return of(qpn).set_port(qpn, port); }
  [[nodiscard]] PortMethod port_method() const override { return first().port_method(); }
  void path_changed(std::uint32_t qpn, Nanos now) override { of(qpn).path_changed(qpn, now); }
  void fail_qp(std::uint32_t qpn) override { of(qpn).fail_qp(qpn); }
  void stop_qp(std::uint32_t qpn) override { of(qpn).stop_qp(qpn); }
  std::vector<WorkRequest> take_back(std::uint32_t qpn, std::uint32_t arrived) override {
    return of(qpn).take_back(qpn, arrived);
  }
  void destroy_qp(std::uint32_t qpn) override { of(qpn).destroy_qp(qpn); }
  void post(std::uint32_t qpn, const WorkRequest& request) override { of(qpn).post(qpn, request); }
  void post_receive(const ReceiveBuffer& buffer) override;
  [[nodiscard]] PathEstimate estimate(std::uint32_t qpn) const override { return of(qpn).estimate(qpn); }
  [[nodiscard]] QpStatistics statistics(std::uint32_t qpn) const override { return of(qpn).statistics(qpn); }
  [[nodiscard]] QpStatistics recent_statistics(std::uint32_t qpn) const override {
    return of(qpn).recent_statistics(qpn);
  }
  [[nodiscard]] Discards discards() const override;
  [[nodiscard]] bool wants_work(Nanos now) const override;
  [[nodiscard]] bool ends_separately(std::uint64_t bytes, std::uint32_t path_mtu) const override {
    return first().ends_separately(bytes, path_mtu);
  }
  bool progress(Nanos now, std::vector<Completion>& completions) override;
  bool take_arrived(Nanos now, std::vector<Completion>& completions) override;
  bool flush(Nanos now) override;
  void settle(Nanos now) override;
  void rest() override;
  [[nodiscard]] Nanos deadline(Nanos now) const override;
  [[nodiscard]] int event_fd() const override { return events_.get(); }

 private:
  [[nodiscard]] Backend& of(std::uint32_t qpn) const { return *shards_[shard_of(qpn, shards_.size())]; }
  [[nodiscard]] Backend& first() const { return *shards_.front(); }

  std::vector<std::unique_ptr<Backend>> shards_;
  FileDescriptor events_;  ///< an epoll set of the shards'
};

}  // namespace paralet
