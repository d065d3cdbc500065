// SPDX-License-Identifier: Apache-2.0
// Devices of several NICs, of which any may fail.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "engine/device_fixture.hpp"
#include "fused/fused_backend.hpp"
#include "soft/soft_backend.hpp"

namespace paralet::test {

inline constexpr unsigned kLanes = 4;

/// The member of `device` at this index; device 0 has 127.0.1.1, 127.0.1.2, ..
inline IpAddress member_address(unsigned device, unsigned member) { return 0x7F000101 + device * 0x100 + member; }

/// `soft` whose packets are lost while `dead`, acknowledgements too. The QP whose number is put into `broken`, if any,
/// is reported as lost with its port.
class MortalBackend final : public SoftBackend {
 public:
  MortalBackend(const SoftOptions& options, const std::atomic<bool>& dead, std::atomic<std::uint32_t>* broken)
      : SoftBackend(options), dead_(dead), broken_(broken) {}
  bool progress(Nanos now, std::vector<Completion>& completions) override {
    const std::uint32_t qpn = broken_ != nullptr ? broken_->exchange(0) : 0;
    if (qpn != 0) {
      completions.push_back({.kind = Completion::Kind::kQpBroken, .status = Status::kPortDown, .qpn = qpn});
    }
    return SoftBackend::progress(now, completions) || qpn != 0;
  }

 protected:
  SendResult hand_to_kernel(int fd, const IpAddress& to, std::uint16_t port, std::span<iovec> pieces,
                            std::uint16_t segment_bytes) override {
    if (dead_) return SendResult::kSent;
    return SoftBackend::hand_to_kernel(fd, to, port, pieces, segment_bytes);
  }

 private:
  const std::atomic<bool>& dead_;
  std::atomic<std::uint32_t>* broken_;
};

using Deaths = std::array<std::atomic<bool>, kMaxMembers>;  ///< by member, of all devices

inline DeviceOptions fused_options(unsigned device, unsigned members, unsigned lanes = kLanes) {
  DeviceOptions out = options(member_address(device, 0), lanes);
  for (unsigned i = 1; i < members; ++i) out.fused_with.push_back(member_address(device, i));
  out.min_timeout = 50 * kMillisecond;
  out.flowlet_bytes = 20'000;
  out.log = [](const std::string&) {};
  return out;
}

/// `broken`: of member 1.
inline std::unique_ptr<Backend> fused_backend(unsigned device, unsigned members, const Deaths& deaths,
                                              std::atomic<std::uint32_t>* broken = nullptr) {
  std::vector<std::unique_ptr<Backend>> all;
  for (unsigned i = 0; i < members; ++i) {
    SoftOptions member;
    member.address = member_address(device, i);
    member.min_timeout = 50 * kMillisecond;
    all.push_back(std::make_unique<MortalBackend>(member, deaths[i], i == 1 ? broken : nullptr));
  }
  return std::make_unique<FusedBackend>(std::move(all));
}

struct FusedPair {
  explicit FusedPair(unsigned members, unsigned lanes = kLanes)
      : a(fused_options(0, members, lanes), fused_backend(0, members, deaths)),
        b(fused_options(1, members, lanes), fused_backend(1, members, deaths)) {}
  Deaths deaths{};
  Device a;
  Device b;
};

inline std::vector<unsigned> members_of(Device& device) {
  std::vector<unsigned> out;
  for (const LaneCounters& lane : device.counters().lanes) out.push_back(lane.member);
  return out;
}

inline std::uint64_t flowlets_over(Device& device, unsigned member) {
  std::uint64_t sum = 0;
  for (const LaneCounters& lane : device.counters().lanes) sum += lane.member == member ? lane.flowlets : 0;
  return sum;
}

/// Sends until flowlets have gone over every member.
inline void use_all(const Joined& joined, unsigned members) {
  REQUIRE(eventually([&] {
    joined.check(400'000);
    for (unsigned i = 0; i < members; ++i) {
      if (flowlets_over(joined.one, i) == 0 || flowlets_over(joined.two, i) == 0) return false;
    }
    return true;
  }));
}

}  // namespace paralet::test
