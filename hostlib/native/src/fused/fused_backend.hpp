// SPDX-License-Identifier: Apache-2.0
// Several NICs that act as one (NIC fusion). Every QP is on one member, which its QPN names (member_of). Memory is
// registered with every member. Everything else is the members' own.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/backend.hpp"
#include "base/file_descriptor.hpp"
#include "base/mutex.hpp"

namespace paralet {

class FusedBackend final : public Backend {
 public:
  /// 2 to kMaxMembers back ends of one kind. Throws DeviceError.
  explicit FusedBackend(std::vector<std::unique_ptr<Backend>> members);

  [[nodiscard]] unsigned members() const override { return static_cast<unsigned>(members_.size()); }
  [[nodiscard]] const Backend& member(unsigned index) const override { return *members_[index]; }
  [[nodiscard]] Transport transport() const override { return members_.front()->transport(); }
  [[nodiscard]] std::uint16_t udp_port() const override { return members_.front()->udp_port(); }
  [[nodiscard]] unsigned shards() const override { return members_.front()->shards(); }
  [[nodiscard]] std::uint32_t max_path_mtu() const override;
  [[nodiscard]] std::uint32_t path_mtu_to(unsigned member, const IpAddress& remote) const override {
    return members_[member]->path_mtu_to(0, remote);
  }
  [[nodiscard]] double port_rate_bps() const override;
  std::uint32_t register_memory(std::byte* base, std::uint64_t length) override;
  std::uint32_t register_source(const std::byte* base, std::uint64_t length) override;
  std::uint32_t register_device_memory(std::byte* base, std::uint64_t length, std::optional<DmaBuf> dmabuf) override;
  void post_fence(std::uint32_t rkey, std::uint64_t offset, std::uint64_t cookie) override;
  [[nodiscard]] std::uint64_t remote_address(std::uint32_t rkey) const override;
  [[nodiscard]] std::uint32_t remote_key(std::uint32_t rkey) const override { return remote_key_on(0, rkey); }
  [[nodiscard]] std::uint32_t remote_key_on(unsigned member, std::uint32_t rkey) const override;
  [[nodiscard]] bool registers_concurrently() const override;
  void deregister_memory(std::uint32_t rkey) override;
  void retire_memory(std::uint32_t rkey) override;
  [[nodiscard]] bool sets_up_concurrently() const override;
  QpIdentity create_qp() override { return create_qp_on(0, 0); }
  QpIdentity create_qp_on(unsigned member, unsigned lane) override;
  [[nodiscard]] Ece ece(std::uint32_t qpn) const override { return of(qpn).ece(local(qpn)); }
  [[nodiscard]] std::uint16_t max_ip_id() const override { return members_.front()->max_ip_id(); }
  bool connect_qp(std::uint32_t qpn, const RemoteQp& remote, std::uint16_t source_port) override;
  void adopt_qp(std::uint32_t qpn) override { of(qpn).adopt_qp(local(qpn)); }
  PortChange set_port(std::uint32_t qpn, std::uint16_t port) override { return of(qpn).set_port(local(qpn), port); }
  [[nodiscard]] PortMethod port_method() const override { return members_.front()->port_method(); }
  void path_changed(std::uint32_t qpn, Nanos now) override { of(qpn).path_changed(local(qpn), now); }
  void fail_qp(std::uint32_t qpn) override { of(qpn).fail_qp(local(qpn)); }
  void stop_qp(std::uint32_t qpn) override { of(qpn).stop_qp(local(qpn)); }
  /// `rkey` and `memory` of what it returns are those of the QP's member.
  std::vector<WorkRequest> take_back(std::uint32_t qpn, std::uint32_t arrived) override;
  void destroy_qp(std::uint32_t qpn) override { of(qpn).destroy_qp(local(qpn)); }
  void post(std::uint32_t qpn, const WorkRequest& request) override;
  void post_receive(const ReceiveBuffer& buffer) override;
  [[nodiscard]] PathEstimate estimate(std::uint32_t qpn) const override { return of(qpn).estimate(local(qpn)); }
  [[nodiscard]] QpStatistics statistics(std::uint32_t qpn) const override { return of(qpn).statistics(local(qpn)); }
  [[nodiscard]] QpStatistics recent_statistics(std::uint32_t qpn) const override {
    return of(qpn).recent_statistics(local(qpn));
  }
  [[nodiscard]] Discards discards() const override;
  [[nodiscard]] std::string port_trouble(Nanos now) const override;
  [[nodiscard]] bool wants_work(Nanos now) const override;
  [[nodiscard]] bool ends_separately(std::uint64_t bytes, std::uint32_t path_mtu) const override {
    return members_.front()->ends_separately(bytes, path_mtu);
  }
  bool progress(Nanos now, std::vector<Completion>& completions) override;
  bool take_arrived(Nanos now, std::vector<Completion>& completions) override;
  bool flush(Nanos now) override;
  void settle(Nanos now) override;
  void rest() override;
  [[nodiscard]] Nanos deadline(Nanos now) const override;
  [[nodiscard]] int event_fd() const override { return events_.get(); }

 private:
  using Keys = std::array<std::uint32_t, kMaxMembers>;  ///< of one registration, by member
  /// A fence on several members, under one number.
  struct Fence {
    std::uint64_t cookie;
    unsigned left;                     ///< members that have not answered
    bool done = false;                 ///< on one member
    Status status = Status::kSuccess;  ///< of members that work
  };

  [[nodiscard]] static std::uint32_t local(std::uint32_t qpn) { return qpn & 0xFFFFFF; }
  [[nodiscard]] Backend& of(std::uint32_t qpn) const { return *members_[member_of(qpn)]; }
  template <typename Register>
  std::uint32_t register_with_all(Register with);
  void release(const Keys& keys);
  [[nodiscard]] Keys keys_of(std::uint32_t rkey) const;
  [[nodiscard]] bool works(unsigned member) const;
  template <typename Each>
  bool any_member(std::vector<Completion>& completions, Each each);
  bool on_fenced(unsigned member, Completion& completion);

  std::vector<std::unique_ptr<Backend>> members_;
  FileDescriptor events_;  ///< an epoll set of the members'
  mutable Mutex mutex_;    ///< members may register on any thread
  std::unordered_map<std::uint32_t, Keys> registrations_ PARALET_GUARDED_BY(mutex_);
  std::uint32_t next_key_ PARALET_GUARDED_BY(mutex_) = 1;
  std::unordered_map<std::uint64_t, Fence> fences_;
  std::uint64_t next_fence_ = 1;
};

}  // namespace paralet
