// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "flowlet.hpp"
#include "handshake.hpp"

namespace paralet {

struct Peer;
struct Request;

/// Why something failed: the type decides which exception the API raises.
enum class Failure : std::uint8_t { kNone, kTransport, kDevice, kClosed };

/// A stream of messages between two devices, matched in order of sends and receives per tag. It owns no QP: its
/// messages travel on the QPs of its peer.
struct Connection {
  enum class State : std::uint8_t { kConnecting, kOpen, kClosing, kClosed };

  // Any thread.
  std::atomic<State> state{State::kConnecting};
  std::atomic<Failure> failure{Failure::kNone};  ///< set after `error`
  std::string error;
  std::uint32_t peer_address = 0;

  // Progress thread only.
  std::uint32_t id = 0;
  std::uint32_t remote_id = 0;
  Peer* peer = nullptr;
  std::optional<handshake::Handle> target;  ///< of a connecting side, for another try
  bool retried = false;
  bool peer_quiet = false;  ///< the peer starts no more flowlets on this connection
  bool close_sent = false;
  bool reply_closed = false;            ///< the peer waits for our Closed
  std::uint32_t next_sequence = 0;      ///< of our offers
  std::uint32_t expected_sequence = 0;  ///< of the peer's offers
  std::map<std::uint32_t, handshake::Offer> early_offers;
  std::deque<handshake::Offer> offers;         ///< receives of the peer that no send has met yet
  std::deque<std::shared_ptr<Request>> sends;  ///< sends that have met no receive yet
  std::map<Request*, std::shared_ptr<Request>> receives;
  std::map<Request*, std::shared_ptr<Request>> in_flight;  ///< sends with flowlets posted or to post
};

/// One send or receive. The caller reads `state`, then `bytes` or `error`; the rest is the progress thread's.
struct Request {
  enum class Kind : std::uint8_t { kSend, kReceive };
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

  // Submission queue.
  Request* next_submitted = nullptr;
  std::shared_ptr<Request> self;

  // Send side.
  handshake::Offer offer;
  std::optional<Flowlets> flowlets;
  std::uint32_t next_flowlet = 0;
  std::uint32_t posted = 0;  ///< flowlets given to a QP and not finished
  std::uint32_t finished = 0;

  // Receive side.
  std::uint16_t slot = 0;
  bool temporary_region = false;
  std::uint32_t arrived = 0;
  std::uint64_t arrived_bytes = 0;
};

}  // namespace paralet
