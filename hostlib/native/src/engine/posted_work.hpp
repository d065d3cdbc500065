// SPDX-License-Identifier: Apache-2.0
// Cookies of posted work are pointers to requests, or to advertisement batches if marked kBatch. 0: the completion
// needs no action.
#pragma once

#include <cstdint>

#include "engine/peer.hpp"
#include "engine/request.hpp"

namespace paralet {

inline constexpr std::uint64_t kBatch = 1;
inline constexpr std::uint64_t kEnd = 2;      // the SEND that ends a flowlet
inline constexpr std::uint64_t kLastEnd = 4;  // the SEND that ends the last flowlet of a message
inline constexpr std::uint64_t kMarks = kBatch | kEnd | kLastEnd;
static_assert(alignof(Request) > kMarks && alignof(AdvertisementBatch) > kMarks);
// NOLINTBEGIN(performance-no-int-to-ptr): the integers were pointers
inline Request* request_of(std::uint64_t cookie) { return reinterpret_cast<Request*>(cookie & ~kMarks); }
inline std::uint64_t cookie_of(const AdvertisementBatch* batch) {
  return reinterpret_cast<std::uint64_t>(batch) | kBatch;
}
inline AdvertisementBatch* batch_of(std::uint64_t cookie) {
  return (cookie & kBatch) != 0 ? reinterpret_cast<AdvertisementBatch*>(cookie & ~kMarks) : nullptr;
}
// NOLINTEND(performance-no-int-to-ptr)
/// Of a flowlet, or of the SEND that ends one.
inline std::uint64_t cookie_of(const Request& request) { return reinterpret_cast<std::uint64_t>(&request); }

}  // namespace paralet
