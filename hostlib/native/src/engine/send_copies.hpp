// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "engine/eager.hpp"
#include "engine/progress_lock.hpp"
#include "engine/registrations.hpp"
#include "engine/request.hpp"

namespace paralet {

/// Copies of short messages: the engine sends the copy and repeats it as often as need be, and the caller's send is
/// done at once. Otherwise it would be done only when the peer has acknowledged it, and a peer acknowledges several
/// messages together.
class SendCopies {
 public:
  static constexpr std::size_t kMostBytes = kMostEagerBytes;  ///< of a message
  static constexpr unsigned kMostOfConnection = 64;           ///< copies that are not acknowledged yet

  explicit SendCopies(const Registrations& registrations) : registrations_(registrations) {}

  /// A copy of the send, which is to be given back. nullptr where the send itself has to go: it is long, the caller
  /// wants to know about its flowlets, the connection has many copies already, or the back end is a NIC. That
  /// acknowledges at once, and would need a registration of the copy.
  std::shared_ptr<Request> take(const Request& send) PARALET_REQUIRES(progress_lock);
  /// Puts a header of at most kEagerHeaderBytes right before the bytes of a copy. Returns where it begins.
  static std::byte* with_header(const Request& copy, std::span<const std::byte> header);
  /// The copy has been acknowledged, or its connection has failed. No QP uses it any more.
  void give_back(std::shared_ptr<Request> copy) PARALET_REQUIRES(progress_lock);
  /// Frees the memory that waits for the next copies.
  void release_spare() PARALET_REQUIRES(progress_lock) { spare_ = {}; }

 private:
  const Registrations& registrations_;
  std::vector<std::shared_ptr<Request>> spare_ PARALET_GUARDED_BY(progress_lock);  ///< the last one is in caches
};

}  // namespace paralet
