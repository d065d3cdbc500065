// SPDX-License-Identifier: Apache-2.0
#include "engine/shard.hpp"

#include <algorithm>
#include <utility>

#include "backend/rc_timing.hpp"
#include "base/errors.hpp"
#include "engine/send_payloads.hpp"

namespace paralet {
namespace {

constexpr std::size_t kReceiveBuffers = 2048;
constexpr Nanos kSilentRoundTrips = 4;
constexpr Nanos kLeastSilence = 5 * kMillisecond;  // shorter silence may be scheduling delay

/// Bytes. A NIC gets no eager messages, and pins its buffers.
std::size_t largest_send(const Backend& backend) {
  constexpr std::size_t kControl = sizeof(AdvertisementBatch::bytes);
  return backend.registers_concurrently() ? kControl : handshake::kEagerHeaderBytes + kMostEagerBytes;
}

}  // namespace

Shard::Shard(Context& context, std::unique_ptr<Backend> backend)
    : context_(context),
      backend_(std::move(backend)),
      buffer_bytes_(largest_send(*backend_)),
      buffers_(std::make_unique_for_overwrite<std::byte[]>(kReceiveBuffers * buffer_bytes_)) {
  for (std::size_t i = 0; i < kReceiveBuffers; ++i) post_receive_buffer(i);
}

void Shard::require_open() const {
  if (!backend_) throw DeviceError("the device is closed");
}

void Shard::post_receive_buffer(std::uint64_t index) {
  backend_->post_receive({.data = buffers_.get() + index * buffer_bytes_,
                          .length = static_cast<std::uint32_t>(buffer_bytes_),
                          .cookie = index});
}

void Shard::drop_qp(std::uint32_t qpn) {
  owners_.erase(qpn);
  backend_->destroy_qp(qpn);
}

void Shard::drop_qps(const Peer& peer) {
  for (const Lane& lane : peer.lanes) {
    if (lane.qp.qpn != 0 && !peer.setting_up) drop_qp(lane.qp.qpn);
    if (lane.renewal && !lane.renewal->setting_up) drop_qp(lane.renewal->qp.qpn);
  }
}

bool Shard::unusable(unsigned member) const {
  return backend_->member(member).port_down() || backend_->member(member).lost();
}

bool Shard::silent(const Lane& lane) const {
  const Nanos usual = backend_->recent_statistics(lane.qp.qpn).smoothed_rtt;
  return backend_->estimate(lane.qp.qpn).smoothed_rtt > std::max(kSilentRoundTrips * usual, kLeastSilence);
}

bool Shard::past_timeout(std::uint32_t qpn) const {
  const QpStatistics statistics = backend_->recent_statistics(qpn);
  const Nanos least = context_.options.min_timeout.value_or(kMinAckTimeout);
  return backend_->estimate(qpn).smoothed_rtt > std::max(least, kSilentRoundTrips * statistics.smoothed_rtt);
}

bool Shard::may_move(const Lane& lane) const {
  return lane.outstanding == 0 || backend_->port_method() == PortMethod::kFlowLabel;
}

}  // namespace paralet
