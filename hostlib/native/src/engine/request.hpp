// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/ring.hpp"
#include "engine/flowlet.hpp"
#include "engine/handshake.hpp"

namespace paralet {

struct Peer;
struct Connection;

/// Why something failed: the type decides which exception the API raises.
enum class Failure : std::uint8_t { kNone, kTransport, kDevice, kClosed };

/// One send or receive. The caller fills in the first group and hands it to Device::submit; then it reads `state`, and
/// `bytes` or `error`; the rest is the engine's. A request that is done may be filled in and submitted again.
struct Request {
  /// kFence, of memory registered as another device's: done when what has been received is in its place.
  enum class Kind : std::uint8_t { kSend, kReceive, kFence };
  enum class State : std::uint8_t { kPending, kDone, kFailed };

  Kind kind = Kind::kSend;
  std::shared_ptr<Connection> connection;
  std::byte* data = nullptr;
  std::uint64_t length = 0;
  std::uint32_t tag = 0;
  std::uint32_t rkey = 0;           ///< of the registered region, 0: registered for this receive alone
  std::uint64_t region_offset = 0;  ///< of `data` in the region

  std::atomic<State> state{State::kPending};
  std::uint64_t bytes = 0;
  Failure failure = Failure::kNone;
  std::string error;

  // Where it stands in the engine: in the list of submissions or of a connection, which own it through `self`.
  std::shared_ptr<Request> self;
  Request* previous = nullptr;
  Request* next = nullptr;

  // Send side.
  handshake::Advertisement advertisement;
  std::optional<Flowlets> flowlets;
  std::uint32_t next_flowlet = 0;
  std::uint32_t posted = 0;  ///< flowlets given to a QP and not finished
  std::uint32_t finished = 0;
  std::array<std::array<std::byte, handshake::kFlowletEndBytes>, 2> ends;  ///< payloads: all but the last, the last

  std::uint32_t temporary_rkey = 0;  ///< 0: the caller's region, or none is needed
  /// Names the memory that the back end reads, or that the sender was told to write to.
  [[nodiscard]] std::uint32_t registration() const { return rkey != 0 ? rkey : temporary_rkey; }

  // Receive side.
  std::uint16_t slot = 0;
  std::uint32_t arrived = 0;
  std::uint64_t arrived_bytes = 0;
};

/// Requests in order, linked through themselves: joining and leaving allocate nothing.
class RequestList {
 public:
  [[nodiscard]] bool empty() const { return first_ == nullptr; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] Request* front() const { return first_; }
  void push_back(std::shared_ptr<Request> request) {
    Request& r = *request;
    r.self = std::move(request);
    r.previous = last_;
    r.next = nullptr;
    (last_ != nullptr ? last_->next : first_) = &r;
    last_ = &r;
    ++size_;
  }
  std::shared_ptr<Request> remove(Request& r) {
    (r.previous != nullptr ? r.previous->next : first_) = r.next;
    (r.next != nullptr ? r.next->previous : last_) = r.previous;
    r.previous = r.next = nullptr;
    --size_;
    return std::move(r.self);
  }

 private:
  Request* first_ = nullptr;
  Request* last_ = nullptr;
  std::size_t size_ = 0;
};

/// A stream of messages between two devices, matched in order of sends and receives per tag. It owns no QP: its
/// messages travel on the QPs of its peer.
struct Connection {
  enum class State : std::uint8_t { kConnecting, kOpen, kClosing, kClosed };

  // Any thread.
  std::atomic<State> state{State::kConnecting};
  std::atomic<Failure> failure{Failure::kNone};  ///< set after `error`
  std::string error;
  std::uint32_t peer_address = 0;

  // Only with the device's progress lock held.
  std::uint32_t id = 0;
  std::uint32_t remote_id = 0;
  Peer* peer = nullptr;
  std::unique_ptr<handshake::Handle> target;  ///< of a connecting side, until it is open
  bool retried = false;
  bool peer_quiet = false;  ///< the peer starts no more flowlets on this connection
  bool close_sent = false;
  bool reply_closed = false;            ///< the peer waits for our Closed
  std::uint32_t next_sequence = 0;      ///< of our advertisements
  std::uint32_t expected_sequence = 0;  ///< of the peer's advertisements
  std::map<std::uint32_t, handshake::Advertisement> early_advertisements;
  Ring<handshake::Advertisement> advertisements;  ///< receives of the peer that no send has met yet
  RequestList sends;                              ///< that have met no receive yet
  RequestList in_flight;                          ///< sends with flowlets posted or to post
  RequestList receives;
};

}  // namespace paralet
