// SPDX-License-Identifier: Apache-2.0
// Requests and connections. The caller and the engine share both; the engine's part is accessed only while the device's
// progress lock is held (device.hpp).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ip_address.hpp"
#include "engine/advertised_receives.hpp"
#include "engine/eager.hpp"
#include "engine/flowlet.hpp"
#include "engine/flowlet_trace.hpp"
#include "engine/fusion.hpp"
#include "engine/handshake.hpp"
#include "engine/send_payloads.hpp"

namespace paralet {

class Device;
struct Peer;
struct Connection;

/// Why something failed. Front ends choose the exception by it.
enum class Failure : std::uint8_t { kNone, kTransport, kDevice, kClosed };

/// One send or receive. The caller fills in the first group and passes the request to Device::submit. It then waits
/// until `state` is no longer kPending and reads the second group. The rest belongs to the engine. A finished request
/// may be filled in and submitted again.
struct Request : std::enable_shared_from_this<Request> {
  /// kFence is for memory registered as another device's: done when all received data is visible there.
  enum class Kind : std::uint8_t { kSend, kReceive, kFence };
  enum class State : std::uint8_t { kPending, kDone, kFailed };

  Kind kind = Kind::kSend;
  std::shared_ptr<Connection> connection;
  std::byte* data = nullptr;
  std::uint64_t length = 0;  ///< bytes
  std::uint32_t tag = 0;
  std::uint32_t rkey = 0;           ///< the registered region; 0: the engine registers `data` for this request
  std::uint64_t region_offset = 0;  ///< of `data` in the region, in bytes

  std::unique_ptr<FlowletTrace> trace;  ///< empty and fresh where the caller wants to know about flowlets, else nullptr

  std::atomic<State> state{State::kPending};
  std::uint64_t bytes = 0;  ///< of the message, when done
  Failure failure = Failure::kNone;
  std::string error;

  // The list that holds the request: the stack of submissions or a list of its connection. It owns the request.
  std::shared_ptr<Request> self;
  Request* previous = nullptr;
  Request* next = nullptr;

  // Send side.
  handshake::Advertisement advertisement;  ///< the receive that the send was matched with
  std::optional<Flowlets> flowlets;
  std::uint32_t next_flowlet = 0;  ///< index of the next flowlet to post
  std::uint32_t posted = 0;        ///< flowlets posted and not finished
  std::uint32_t finished = 0;      ///< flowlets finished
  bool takes_turns = false;        ///< its flowlets wait for a lane (Sends::pump); false: a short message
  bool is_copy = false;            ///< the engine's own, of a send that is done for its caller (send_copies.hpp)
  /// Payloads of the SENDs that end flowlets: one for the last flowlet, one that all others share.
  std::array<std::array<std::byte, handshake::kFlowletEndBytes>, 2> ends;

  std::uint32_t temporary_rkey = 0;  ///< of the engine's own registration, 0: none
  /// The registration that the backend reads from, or that the sender writes to.
  [[nodiscard]] std::uint32_t registration() const { return rkey != 0 ? rkey : temporary_rkey; }

  // Receive side.
  std::uint16_t slot = 0;     ///< names the receive in flowlets
  std::uint32_t arrived = 0;  ///< flowlets
  std::uint64_t arrived_bytes = 0;
  std::optional<std::uint32_t> sequence;  ///< of its advertisement, nullopt: it has none
};

/// Requests in order, linked through themselves: push_back and remove allocate nothing.
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
  /// `r` must be in the list. Returns its ownership.
  std::shared_ptr<Request> remove(Request& r) {
    (r.previous != nullptr ? r.previous->next : first_) = r.next;
    (r.next != nullptr ? r.next->previous : last_) = r.previous;
    r.previous = r.next = nullptr;
    --size_;
    return std::move(r.self);
  }
  /// Those that use this registration of the caller's.
  [[nodiscard]] std::vector<std::shared_ptr<Request>> with_registration(std::uint32_t rkey) const {
    std::vector<std::shared_ptr<Request>> out;
    for (const Request* request = first_; request != nullptr; request = request->next) {
      if (request->rkey == rkey) out.push_back(request->self);
    }
    return out;
  }

 private:
  Request* first_ = nullptr;
  Request* last_ = nullptr;
  std::size_t size_ = 0;
};

/// A stream of messages between two devices. Within a tag, the k-th send meets the k-th receive. A connection owns no
/// QP: its messages use the QPs of its peer.
struct Connection {
  /// What changes when messages move; Observation compares it.
  struct Progress {
    std::uint64_t flowlets = 0;  ///< finished and arrived ones of the oldest messages
    std::uint32_t sent = 0;      ///< sends finished, modulo 2^32
    std::uint32_t matched = 0;   ///< sends matched with a receive, modulo 2^32
    std::uint32_t received = 0;  ///< receives finished, modulo 2^32
    bool open = false;
    bool operator==(const Progress&) const = default;
  };
  enum class State : std::uint8_t { kConnecting, kOpen, kClosing, kClosed };

  std::atomic<State> state{State::kConnecting};
  std::atomic<Failure> failure{Failure::kNone};  ///< set after `error`
  std::string error;
  IpAddress peer_address;
  /// Device::give_up was called: `failure` and `error` say why. Requests may stay kPending although they have failed.
  std::atomic<bool> given_up{false};
  /// Messages whose sends are done because the engine has copied them, and that the peer has not acknowledged yet.
  std::atomic<unsigned> copies{0};

 private:
  // The engine's parts, only while its progress lock is held.
  friend class Advertisements;
  friend class Closes;
  friend class Connections;
  friend class Device;
  friend class Front;
  friend class MemoryReturn;
  friend class Observation;
  friend class PeerEnds;
  friend struct Peers;
  friend class Receives;
  friend class SendCopies;
  friend class Sends;
  std::uint32_t id = 0;
  std::uint32_t remote_id = 0;  ///< the peer's name for it
  Peer* peer = nullptr;
  unsigned lanes = 0;                         ///< QPs wanted by the connecting side
  std::unique_ptr<handshake::Handle> target;  ///< on the connecting side, until the connection is open
  bool retried = false;                       ///< started again because the peer had dropped its idle QPs
  std::optional<Fusion::Start> start;         ///< the next attempt to set a fused peer up; nullopt: the first
  bool peer_quiet = false;                    ///< the peer posts no more flowlets on this connection
  bool close_sent = false;
  std::unique_ptr<std::string> overrun;  ///< the last message that was longer than its receive, as a sentence
  bool reply_closed = false;             ///< the peer waits for our Closed
  std::uint32_t next_sequence = 0;       ///< of our receive advertisements
  std::uint32_t received = 0;            ///< receives done, modulo 2^32
  EagerSends eager_sends;
  EagerArrivals eager_arrivals;
  AdvertisedReceives advertised;
  RequestList sends;      ///< not matched with a receive yet
  RequestList in_flight;  ///< matched sends
  RequestList receives;
  Progress progress;        ///< at the last sample
  Nanos progressed_at = 0;  ///< the sample that last saw progress, or the begin of the wait; 0: nothing is under way
};

}  // namespace paralet
