// SPDX-License-Identifier: Apache-2.0
// The engine as its callers see it.
//
//   Device      one NIC address. It owns a Backend, which sends and receives packets.
//   Peer        another device that this one shares QPs with, plus a TCP channel for the handshake (handshake.hpp).
//               All connections to that device share its QPs.
//   Lane        one of the m paths to a peer: a QP and its UDP source port, which ECMP hashes to a path.
//   Connection  a stream of messages between two devices (request.hpp). It owns no QP.
//   Request     one send or receive. A send is cut into flowlets; each is posted on one lane.
//
// Any thread may call the public functions. What they act on belongs to the holder of the progress lock
// (progress_lock.hpp): one shard, which moves packets (shard.hpp), and the front (front.hpp) with its parts
// (parts.hpp). These threads take the lock: callers; the progress thread (progress_thread.hpp), which moves packets
// while no caller does; and where a back end has slow calls, the set-up thread (qp_set_up.hpp) and the memory thread
// (registrations.hpp) at the end of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.hpp"
#include "base/clock.hpp"
#include "base/ip_address.hpp"
#include "base/signal.hpp"
#include "engine/context.hpp"
#include "engine/counters.hpp"
#include "engine/listeners.hpp"
#include "engine/live_counters.hpp"
#include "engine/options.hpp"
#include "engine/poller.hpp"
#include "engine/request.hpp"

namespace paralet {

class Device {
 public:
  /// Throws DeviceError.
  explicit Device(const DeviceOptions& options);
  /// The same over an existing backend.
  Device(const DeviceOptions& options, std::unique_ptr<Backend> backend);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  /// Closes without waiting for peers.
  ~Device();
  /// Closes every connection, waits up to `timeout` for the peers to agree, then stops. Pending requests fail.
  void close(Nanos timeout = 2 * kSecond);
  /// True also in a forked child.
  [[nodiscard]] bool closed() const;
  /// Whether this process is a forked child of the one that opened the device. It has no progress thread and must not
  /// touch the QPs: closing and deregistering do nothing there, requests fail, and all other calls throw DeviceError.
  [[nodiscard]] bool inherited() const;
  /// Throws DeviceError in a forked child, for callers that would take a lock of their own or wait.
  void check_owner() const;

  std::shared_ptr<Listener> listen();
  /// Closes the listener; accepted connections stay.
  void stop_listening(const std::shared_ptr<Listener>& listener);
  /// Does not wait for the peer: watch the connection's state. Throws std::invalid_argument for an invalid handle.
  /// `lanes`: QPs for a peer that has none yet, at most the device's m; a peer with fewer is not used.
  std::shared_ptr<Connection> connect(std::span<const std::byte> handle, std::optional<unsigned> lanes = std::nullopt);
  /// When something last came from the connection's peer, 0: never. Reads first what has arrived: this process may not
  /// have run for a while. Throws DeviceError when the device is closed.
  Nanos heard_at(const Connection& connection);
  /// Starts closing. The state becomes kClosed when both sides are done.
  void close_connection(const std::shared_ptr<Connection>& connection);
  /// For a peer that does not answer a close: returns the memory of all the connection's requests to the caller.
  /// Flowlets on QPs can only be withdrawn with the QPs, so if there are any the whole peer is given up. Advertised
  /// memory is retired, also for other connections that use the same registration.
  void give_up(const std::shared_ptr<Connection>& connection);
  /// What a close waits for, beside the requests' memory.
  enum class Closing : std::uint8_t {
    kSent,       ///< that the connection's sends have arrived, also those that were done before (send_copies.hpp)
    kBothSides,  ///< that, and the peer's answer, by which it knows that all it sent has arrived
  };
  /// Closes the connection and waits until the engine no longer uses the memory of `requests`, all of this connection.
  /// A peer that shows no sign of life is given up: after a second, or after the retry time and a second while it may
  /// still acknowledge flowlets that are read from that memory. Returns false then.
  bool close_and_wait(const std::shared_ptr<Connection>& connection,
                      const std::vector<std::shared_ptr<Request>>& requests, Closing until);

  /// Registers memory for sends and receives; returns the rkey. Throws std::invalid_argument when part of it is not
  /// mapped, DeviceError when the back end cannot register it.
  std::uint32_t register_memory(std::byte* base, std::uint64_t length);
  /// Registers memory of another device (a GPU) for sends and receives: Backend::register_device_memory.
  std::uint32_t register_device_memory(std::byte* base, std::uint64_t length, std::optional<DmaBuf> dmabuf);
  /// Returns the memory to the caller. Connections with unfinished messages from or into it, whoever registered it, are
  /// closed as by close_and_wait: these messages fail. Returns the addresses of their peers.
  std::vector<IpAddress> deregister_memory(std::uint32_t rkey);

  /// Moves packets on the calling thread if no other thread is doing so. Progress never depends on it: a thread that
  /// busy-waits calls it to save the hand-over to the progress thread.
  void poll() { poller_->poll(now()); }
  /// The same for a thread that tests many requests. After a poll that found nothing, it polls again only for the same
  /// request, or after kPollInterval. So a pass over all requests costs one system call instead of one per request.
  void poll_for(const void* request) { poller_->poll_for(request); }
  /// Polls for `busy_poll`, then sleeps, until `ready` holds or `timeout` has passed (nullopt: no limit). Returns the
  /// last value of `ready`.
  template <typename Predicate>
  bool wait(Predicate ready, std::optional<Nanos> timeout) {
    return poller_->wait(std::move(ready), timeout);
  }
  /// Call before sleeping: the progress thread takes over at once, not after Polling::kStandBack.
  void stop_polling() { poller_->stop(); }

  /// Starts a filled-in request. Its memory must stay until the state is no longer kPending.
  void submit(const std::shared_ptr<Request>& request);

  /// Moves a lane of every peer at this address to another source port, between flowlets. False: no such peer.
  bool set_port(const IpAddress& peer_address, unsigned lane, std::uint16_t port);

  DeviceCounters counters();
  [[nodiscard]] std::uint32_t path_mtu() const { return context_->path_mtu; }
  [[nodiscard]] std::uint16_t udp_port() const { return nics().front().udp_port; }
  /// One, or the members of a fused device.
  [[nodiscard]] const std::vector<DeviceNic>& nics() const { return context_->nics; }
  [[nodiscard]] const DeviceOptions& options() const { return context_->options; }

 private:
  struct Inside;

  std::unique_ptr<Inside> inside_;
  Context* context_;  ///< of `inside_`
  Poller* poller_;    ///< of `inside_`
};

}  // namespace paralet
