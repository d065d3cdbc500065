// SPDX-License-Identifier: Apache-2.0
#include "engine/send_copies.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "engine/send_payloads.hpp"

namespace paralet {
namespace {

constexpr std::size_t kMostSpare = 64;

struct Copy final : Request {
  std::array<std::byte, handshake::kEagerHeaderBytes + SendCopies::kMostBytes> bytes;
};

}  // namespace

std::shared_ptr<Request> SendCopies::take(const Request& send) {
  Connection& connection = *send.connection;
  if (send.length > kMostBytes || send.trace || registrations_.concurrent() ||
      connection.copies.load(std::memory_order_relaxed) >= kMostOfConnection) {
    return nullptr;
  }
  std::shared_ptr<Request> copy;
  if (spare_.empty()) {
    const auto fresh = std::make_shared_for_overwrite<Copy>();
    fresh->is_copy = true;
    fresh->data = fresh->bytes.data() + handshake::kEagerHeaderBytes;
    copy = fresh;
  } else {
    copy = std::move(spare_.back());
    spare_.pop_back();
  }
  if (send.length > 0) std::memcpy(copy->data, send.data, send.length);
  copy->length = send.length;
  copy->tag = send.tag;
  copy->connection = send.connection;
  connection.copies.fetch_add(1, std::memory_order_relaxed);
  return copy;
}

std::byte* SendCopies::with_header(const Request& copy, std::span<const std::byte> header) {
  std::byte* const out = copy.data - header.size();
  std::ranges::copy(header, out);
  return out;
}

void SendCopies::give_back(std::shared_ptr<Request> copy) {
  const auto connection = std::move(copy->connection);
  if (spare_.size() < kMostSpare) spare_.push_back(std::move(copy));
  connection->copies.fetch_sub(1, std::memory_order_release);
}

}  // namespace paralet
