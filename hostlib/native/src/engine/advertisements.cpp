// SPDX-License-Identifier: Apache-2.0
#include "engine/advertisements.hpp"

#include <algorithm>
#include <utility>

#include "engine/handshake.hpp"
#include "engine/posted_work.hpp"
#include "engine/send_payloads.hpp"

namespace paralet {
namespace {

constexpr Nanos kAdvertisementDelay = 100 * kMicrosecond;

}  // namespace

void Advertisements::add(Request& receive) {
  Connection& connection = *receive.connection;
  Peer& peer = *connection.peer;
  receive.sequence = connection.next_sequence++;
  handshake::Advertisement advertisement{.connection = connection.remote_id,
                                         .sequence = *receive.sequence,
                                         .tag = receive.tag,
                                         .slot = receive.slot,
                                         .rkeys = {shard_.backend().remote_key(receive.registration())},
                                         .eager = connection.eager_arrivals.taken(),
                                         .address = shard_.backend().remote_address(receive.registration()) +
                                                    (receive.rkey != 0 ? receive.region_offset : 0),
                                         .length = receive.length};
  if (peer.fusion) {
    for (unsigned i = 1; i < peer.fusion->members.size(); ++i) {
      advertisement.rkeys[i] = shard_.backend().remote_key_on(i, receive.registration());
    }
  }
  const auto bytes = handshake::encode(advertisement, peer.fusion != nullptr);
  gather(peer, std::span(bytes).first(handshake::advertisement_bytes(peer.fusion != nullptr)),
         connection.receives.size() <= kEnough);
}

void Advertisements::ask(Connection& connection, std::uint32_t number) {
  const auto bytes = handshake::encode(handshake::Ask{.connection = connection.remote_id, .number = number});
  gather(*connection.peer, bytes, true);
}

void Advertisements::grant(Connection& connection) {
  const auto bytes = handshake::encode(connection.eager_arrivals.grant(connection.remote_id, connection.next_sequence));
  gather(*connection.peer, bytes, true);  // the sender may wait for it
}

/// Adds an item to what goes to the peer next.
void Advertisements::gather(Peer& peer, std::span<const std::byte> item, bool urgent) {
  if (peer.gathering != nullptr && peer.gathering->used + item.size() > peer.gathering->bytes.size()) send(peer);
  if (peer.gathering == nullptr) {
    peer.gathering = &spare_batch(peer);
    peer.gathering->used = 0;
    peer.gathering->each = static_cast<std::uint32_t>(handshake::advertisement_bytes(peer.fusion != nullptr));
    peer.advertisements_urgent = false;
    peer.advertisements_since = now();
    gathering_.push_back(&peer);
  }
  AdvertisementBatch& batch = *peer.gathering;
  std::ranges::copy(item, batch.bytes.begin() + batch.used);
  batch.used += static_cast<std::uint32_t>(item.size());
  peer.advertisements_urgent = peer.advertisements_urgent || urgent;
  if (batch.used + batch.each > batch.bytes.size()) send(peer);
}

void Advertisements::send_due(Nanos t) {
  for (std::size_t i = 0; i < gathering_.size();) {
    Peer& peer = *gathering_[i];
    if (peer.advertisements_urgent || t - peer.advertisements_since >= kAdvertisementDelay) {
      send(peer);
    } else {
      ++i;
    }
  }
}

void Advertisements::send_all() {
  while (!gathering_.empty()) send(*gathering_.back());
}

/// Sends the advertisements that have gathered in one SEND.
void Advertisements::send(Peer& peer) {
  std::erase(gathering_, &peer);
  AdvertisementBatch* batch = std::exchange(peer.gathering, nullptr);  // comes back with the completion
  post(peer.choice.for_small(peer.lanes, peer.path_mtu, shard_.measured()), *batch);
}

void Advertisements::post(Lane& lane, AdvertisementBatch& batch) {
  batch.lane = &lane;
  batch.repeated = false;
  // A NIC takes one advertisement with the request itself, without a registration.
  const std::uint32_t each = batch.registers ? batch.each : batch.used;
  for (std::uint32_t i = 0; i < batch.used; i += each) {
    shard_.post(lane, {.kind = WorkKind::kSend,
                       .cookie = i + each == batch.used ? cookie_of(&batch) : 0,
                       .data = batch.bytes.data() + i,
                       .length = each,
                       .memory = batch.memory});
  }
}

void Advertisements::repeat(Peer& peer) {
  for (std::size_t i = 0; i < peer.batches.size(); ++i) {
    AdvertisementBatch& batch = *peer.batches[i];
    if (batch.lane == nullptr || batch.repeated || !shard_.silent(*batch.lane)) continue;
    Lane& other = peer.choice.for_urgent(peer.lanes, peer.path_mtu, shard_.measured());
    if (shard_.silent(other)) return;
    AdvertisementBatch& copy = spare_batch(peer);
    copy.bytes = batch.bytes;
    copy.used = batch.used;
    copy.each = batch.each;
    batch.repeated = true;
    post(other, copy);
  }
}

AdvertisementBatch& Advertisements::spare_batch(Peer& peer) {
  if (peer.spare_batches.empty()) {
    const auto& fresh = peer.batches.emplace_back(std::make_shared<AdvertisementBatch>());
    registrations_.register_batch(peer, fresh);
    return *fresh;
  }
  AdvertisementBatch& batch = *peer.spare_batches.back();
  peer.spare_batches.pop_back();
  return batch;
}

void Advertisements::on_sent(Peer& peer, AdvertisementBatch& batch) {
  batch.lane = nullptr;
  peer.spare_batches.push_back(&batch);
}

void Advertisements::drop(Peer& peer) {
  std::erase(gathering_, &peer);
  peer.spare_batches.clear();
  peer.gathering = nullptr;
  registrations_.release_batches(std::exchange(peer.batches, {}));
}

}  // namespace paralet
