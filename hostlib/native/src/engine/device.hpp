// SPDX-License-Identifier: Apache-2.0
// The engine: a Device with its peers, lanes and connections.
//
//   Device      one NIC address. It owns a Backend, which sends and receives packets.
//   Peer        another device that this one shares QPs with, plus a TCP channel for the handshake (handshake.hpp).
//               All connections to that device share its QPs.
//   Lane        one of the m paths to a peer: a QP and its UDP source port, which ECMP hashes to a path.
//   Connection  a stream of messages between two devices (request.hpp). It owns no QP.
//   Request     one send or receive. A send is cut into flowlets; each is posted on one lane.
//
// Threads. Any thread may call the public functions. All state of peers, lanes, connections and the backend belongs to
// the holder of the device's progress lock; Clang's thread-safety analysis checks this (base/mutex.hpp). The holder
// moves packets (step). These threads take the lock:
//   - a caller that submits a request or polls, if the lock is free (it never waits for the lock). It then sends and
//     receives on its own core, and no other thread has to wake up. If the lock is held, a poll does nothing, and a
//     submitted request goes on a lock-free stack; every holder starts the requests on the stack after unlocking.
//   - a caller of any other function: it waits for the lock.
//   - the device's progress thread (run). It moves packets while no caller polls, so that progress never depends on
//     callers. It sleeps until a packet arrives or a timer expires.
//
//   - the set-up thread, where creating and connecting QPs takes long (Backend::sets_up_concurrently). It does so
//     without the lock, and takes the lock for what follows (device_setup.cpp).
//   - the memory thread, where registering memory takes long (Backend::registers_concurrently): it registers and
//     deregisters what the engine registers itself, without the lock (device_memory.cpp).
//
// The member functions are in eight files: device.cpp (lock, threads, public calls), device_control.cpp (peers and
// connections), device_setup.cpp (QPs of peers and lanes), device_data.cpp (messages), device_memory.cpp (registered
// memory and its return to the caller), device_paths.cpp (changes of a lane's source port), device_fusion.cpp (several
// NICs as one) and device_progress.cpp (what connections and lanes wait for).
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/backend.hpp"
#include "base/mutex.hpp"
#include "base/owner_process.hpp"
#include "base/ring.hpp"
#include "base/signal.hpp"
#include "base/worker.hpp"
#include "engine/backlog.hpp"
#include "engine/channel.hpp"
#include "engine/counters.hpp"
#include "engine/fusion.hpp"
#include "engine/handshake.hpp"
#include "engine/live_counters.hpp"
#include "engine/options.hpp"
#include "engine/peer.hpp"
#include "engine/polling.hpp"
#include "engine/request.hpp"
#include "paths/path_policy.hpp"

namespace paralet {

/// Where connections to a device arrive. Any thread.
class Listener {
 public:
  /// The next connection that nobody has accepted (Backlog::take), nullptr when there is none.
  std::shared_ptr<Connection> accept();

  std::array<std::byte, handshake::kHandleBytes> handle{};  ///< what a connecting side needs
  std::uint32_t id = 0;

 private:
  friend class Device;
  Mutex mutex_;
  Backlog backlog_ PARALET_GUARDED_BY(mutex_);
  bool told_ PARALET_GUARDED_BY(mutex_) = false;  ///< the user, that a host has too many in it
};

/// What LaneChoice asks of the back end.
class LaneEstimates {
 public:
  explicit LaneEstimates(const Backend& backend) : backend_(backend) {}
  [[nodiscard]] PathEstimate estimate(const Lane& lane) const { return backend_.estimate(lane.qp.qpn); }
  [[nodiscard]] static Nanos now() { return paralet::now(); }

 private:
  const Backend& backend_;
};

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
  [[nodiscard]] bool closed() const { return closed_.load() || inherited(); }
  /// Whether this process is a forked child of the one that opened the device. It has no progress thread and must not
  /// touch the QPs: closing and deregistering do nothing there, requests fail, and all other calls throw DeviceError.
  [[nodiscard]] bool inherited() const { return owner_.inherited(); }
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
    kMemory,     ///< nothing
    kBothSides,  ///< the peer's answer, by which it knows that all it sent has arrived
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
  void poll() { poll(now()); }
  /// The same for a thread that tests many requests. After a poll that found nothing, it polls again only for the same
  /// request, or after kPollInterval. So a pass over all requests costs one system call instead of one per request.
  void poll_for(const void* request);
  /// Polls for `busy_poll`, then sleeps, until `ready` holds or `timeout` has passed (nullopt: no limit). Returns the
  /// last value of `ready`.
  template <typename Predicate>
  bool wait(Predicate ready, std::optional<Nanos> timeout) {
    bool begun = false;
    for (const Nanos start = now(); !ready();) {
      const Nanos t = now();
      const Nanos waited = t - start;
      if (!std::exchange(begun, true)) polling_->begin();
      if (timeout && waited >= *timeout) return ready();
      if (waited >= options_.busy_poll) {
        stop_polling();
        return completion_signal().wait(ready, timeout ? std::optional(*timeout - waited) : std::nullopt);
      }
      poll(t);
    }
    return true;
  }
  /// Call before sleeping: the progress thread takes over at once, not after Polling::kStandBack.
  void stop_polling() { polling_->stop(); }

  /// Starts a filled-in request. Its memory must stay until the state is no longer kPending.
  void submit(const std::shared_ptr<Request>& request);

  /// Moves a lane of every peer at this address to another source port, between flowlets. False: no such peer.
  bool set_port(const IpAddress& peer_address, unsigned lane, std::uint16_t port);

  DeviceCounters counters();
  [[nodiscard]] std::uint32_t path_mtu() const { return path_mtu_; }
  [[nodiscard]] std::uint16_t udp_port() const { return nics_.front().udp_port; }
  /// One, or the members of a fused device.
  [[nodiscard]] const std::vector<DeviceNic>& nics() const { return nics_; }
  [[nodiscard]] const DeviceOptions& options() const { return options_; }

 private:
  /// A TCP connection whose hello has not come yet.
  struct Incoming {
    std::unique_ptr<Channel> channel;
    IpAddress address;
    Nanos until;  ///< deadline of the hello
  };
  /// Where a member of the device listens.
  struct Door {
    FileDescriptor socket;
    std::uint16_t port = 0;
  };
  struct QpOwner {
    Peer* peer;
    unsigned lane;
  };

  /// Holds the progress lock.
  class PARALET_SCOPED_CAPABILITY ProgressLockGuard {
   public:
    /// Waits for the lock. Throws DeviceError in a forked child, where a thread that does not exist may hold it.
    explicit ProgressLockGuard(Device& device) PARALET_ACQUIRE(device.progress_lock_);
    /// Takes over the lock that try_lock has taken.
    ProgressLockGuard(Device& device, std::adopt_lock_t locked) PARALET_REQUIRES(device.progress_lock_);
    ProgressLockGuard(const ProgressLockGuard&) = delete;
    ProgressLockGuard& operator=(const ProgressLockGuard&) = delete;
    ~ProgressLockGuard() PARALET_RELEASE();

   private:
    Device& device_;
  };

  // Any thread, without the lock.
  bool poll(Nanos now);
  void run();
  void wake() { polling_->wake(); }
  void watch(int fd, bool write);
  bool ignore(int fd);
  void report_failure(Request& request, Failure failure, const std::string& error);

  void release_progress_lock() PARALET_RELEASE(progress_lock_);

  // All functions below require the progress lock. device.cpp: what its holder does
  void begin_call() PARALET_REQUIRES(progress_lock_);
  bool step(Nanos now) PARALET_REQUIRES(progress_lock_);
  void look() PARALET_REQUIRES(progress_lock_);
  void settle(Nanos now) PARALET_REQUIRES(progress_lock_);
  void start_submitted() PARALET_REQUIRES(progress_lock_);
  [[nodiscard]] Nanos next_deadline(Nanos now) const PARALET_REQUIRES(progress_lock_);
  void housekeeping(Nanos now) PARALET_REQUIRES(progress_lock_);
  [[nodiscard]] bool awaits(const Peer& peer) const PARALET_REQUIRES(progress_lock_);
  void release_spare() PARALET_REQUIRES(progress_lock_);
  [[nodiscard]] DeviceCounters collect() const PARALET_REQUIRES(progress_lock_);

  // device_progress.cpp: what connections and lanes wait for
  void publish_counters(Nanos now) PARALET_REQUIRES(progress_lock_);
  void sample_progress(Nanos now) PARALET_REQUIRES(progress_lock_);
  void collect_under_way(DeviceCounters& counters) const PARALET_REQUIRES(progress_lock_);
  [[nodiscard]] static bool under_way(const Connection& connection);
  [[nodiscard]] static Connection::Progress progress_of(const Connection& connection);
  [[nodiscard]] static ConnectionCounters counters_of(const Connection& connection);

  // device_data.cpp: messages
  void start(std::shared_ptr<Request> request) PARALET_REQUIRES(progress_lock_);
  void start_receive(const std::shared_ptr<Request>& request) PARALET_REQUIRES(progress_lock_);
  void start_fence(std::shared_ptr<Request> request) PARALET_REQUIRES(progress_lock_);
  void on_fenced(const Completion& completion) PARALET_REQUIRES(progress_lock_);
  void send_advertisements(Peer& peer) PARALET_REQUIRES(progress_lock_);
  void post_advertisements(Lane& lane, AdvertisementBatch& batch) PARALET_REQUIRES(progress_lock_);
  void repeat_advertisements(Peer& peer) PARALET_REQUIRES(progress_lock_);
  void ping(Peer& peer) PARALET_REQUIRES(progress_lock_);
  AdvertisementBatch& spare_batch(Peer& peer) PARALET_REQUIRES(progress_lock_);
  bool flush(Nanos now) PARALET_REQUIRES(progress_lock_);
  void on_advertisements(Peer& peer, std::span<const std::byte> bytes) PARALET_REQUIRES(progress_lock_);
  void add_advertisement(Peer& peer, const handshake::Advertisement& advertisement) PARALET_REQUIRES(progress_lock_);
  void match(Connection& connection) PARALET_REQUIRES(progress_lock_);
  void start_message(const std::shared_ptr<Request>& request, const handshake::Advertisement& advertisement)
      PARALET_REQUIRES(progress_lock_);
  void post_flowlet(Lane& lane, Request& request, std::uint32_t path_mtu) PARALET_REQUIRES(progress_lock_);
  bool pump(Nanos now) PARALET_REQUIRES(progress_lock_);
  void post(Lane& lane, const WorkRequest& work) PARALET_REQUIRES(progress_lock_);
  [[nodiscard]] LaneEstimates measured() const PARALET_REQUIRES(progress_lock_) { return LaneEstimates(*backend_); }
  [[nodiscard]] std::uint64_t flowlet_size(const Peer& peer) const PARALET_REQUIRES(progress_lock_);
  void consult_policy(Peer& peer, unsigned lane, unsigned unheard = 0) PARALET_REQUIRES(progress_lock_);
  [[nodiscard]] bool silent(const Lane& lane) const PARALET_REQUIRES(progress_lock_);
  void take_news() PARALET_REQUIRES(progress_lock_);
  void report_traffic(Nanos now) PARALET_REQUIRES(progress_lock_);
  void on_completion(const Completion& completion) PARALET_REQUIRES(progress_lock_);
  void fail_lane(Peer& peer, unsigned lane, const Completion& why) PARALET_REQUIRES(progress_lock_);
  void on_sent(Peer& peer, unsigned lane, const Completion& completion) PARALET_REQUIRES(progress_lock_);
  void on_received_send(Peer& peer, unsigned lane, std::span<const std::byte> bytes) PARALET_REQUIRES(progress_lock_);
  void on_flowlet_arrived(Peer& peer, unsigned lane, std::uint32_t slot, std::uint32_t count, std::uint32_t bytes)
      PARALET_REQUIRES(progress_lock_);
  void finish(Request& request) PARALET_REQUIRES(progress_lock_);
  void fail(Request& request, Failure failure, const std::string& error) PARALET_REQUIRES(progress_lock_);
  bool register_temporarily(Request& request, Backend& backend);
  void note_failure(Request& request, Failure failure, const std::string& error);
  void release_receive(Request& request) PARALET_REQUIRES(progress_lock_);
  [[nodiscard]] static std::string overrun_text(std::uint64_t message_bytes, std::uint64_t receive_bytes);
  void post_receive_buffer(std::uint64_t index) PARALET_REQUIRES(progress_lock_);

  // device_memory.cpp: registered memory
  /// Unfinished requests of one connection that use a region; without a connection: fences.
  struct MemoryUser {
    std::shared_ptr<Connection> connection;
    std::vector<std::shared_ptr<Request>> requests;
  };
  template <typename Use>
  auto register_with(Use use);
  bool register_ahead(Request& request);
  bool wait_for_release(const MemoryUser& user, Closing until);
  [[nodiscard]] std::vector<MemoryUser> users_of(std::uint32_t rkey) const PARALET_REQUIRES(progress_lock_);
  [[nodiscard]] std::uint64_t signs_of_life(const Peer& peer) const PARALET_REQUIRES(progress_lock_);
  [[nodiscard]] std::vector<std::uint32_t> start_giving_up(Connection& connection) PARALET_REQUIRES(progress_lock_);
  [[nodiscard]] bool awaited(std::uint32_t rkey) const PARALET_REQUIRES(progress_lock_);
  void retire(const std::vector<std::uint32_t>& rkeys);
  void on_memory_thread(std::function<void()> job) PARALET_REQUIRES(progress_lock_);
  bool end_after_release(Request& request, Request::State state) PARALET_REQUIRES(progress_lock_);
  void register_batch(Peer& peer, const std::shared_ptr<AdvertisementBatch>& batch) PARALET_REQUIRES(progress_lock_);
  void release_batches(Peer& peer) PARALET_REQUIRES(progress_lock_);
  [[nodiscard]] bool retired(std::uint32_t rkey) const PARALET_REQUIRES(progress_lock_);

  // device_paths.cpp: changes of a lane's source port
  [[nodiscard]] bool may_move(const Lane& lane) const PARALET_REQUIRES(progress_lock_);
  void move_lane(Peer& peer, unsigned index) PARALET_REQUIRES(progress_lock_);
  void on_port_changed(Peer& peer, unsigned index, const Completion& completion) PARALET_REQUIRES(progress_lock_);
  void leave_dead_path(Peer& peer, unsigned index) PARALET_REQUIRES(progress_lock_);
  void renew_lane(Peer& peer, unsigned index, std::uint16_t port, unsigned member) PARALET_REQUIRES(progress_lock_);
  void on_broken(Peer& peer, unsigned index, const Completion& completion) PARALET_REQUIRES(progress_lock_);
  void answer_new_qp(Peer& peer, const handshake::NewQp& frame, bool asked) PARALET_REQUIRES(progress_lock_);
  void end_refused(Peer& peer, unsigned index) PARALET_REQUIRES(progress_lock_);
  void replace_broken_qp(Peer& peer, unsigned index) PARALET_REQUIRES(progress_lock_);
  void stop_old_qp(Lane& lane) PARALET_REQUIRES(progress_lock_);
  void on_stopped(Peer& peer, unsigned index, const Completion& completion) PARALET_REQUIRES(progress_lock_);
  void resolve(Lane& lane) PARALET_REQUIRES(progress_lock_);
  void address_again(std::vector<WorkRequest>& works, unsigned member) const PARALET_REQUIRES(progress_lock_);
  [[nodiscard]] bool past_timeout(std::uint32_t qpn) const PARALET_REQUIRES(progress_lock_);
  Renewal* renewal_after(Peer& peer, unsigned index, Renewal::Event event) PARALET_REQUIRES(progress_lock_);
  void advance_renewal(Peer& peer, unsigned index) PARALET_REQUIRES(progress_lock_);

  // device_setup.cpp: QPs of peers and lanes
  void set_up(std::function<void(Backend&)> work, std::function<bool()> done) PARALET_REQUIRES(progress_lock_);
  void begin_setup(Peer& peer) PARALET_REQUIRES(progress_lock_);
  bool end_setup(Peer& peer) PARALET_REQUIRES(progress_lock_);
  void replay(Peer& peer, const std::vector<handshake::Frame>& frames) PARALET_REQUIRES(progress_lock_);
  void replay_held(Peer& peer) PARALET_REQUIRES(progress_lock_);
  void create_qps(Peer& peer, std::function<void()> next) PARALET_REQUIRES(progress_lock_);
  std::optional<std::uint16_t> other_port(const Peer& peer, std::size_t index, unsigned& attempts,
                                          std::optional<std::uint16_t>& held, bool& exhausted)
      PARALET_REQUIRES(progress_lock_);
  void connect_qps(Peer& peer, const handshake::Endpoint& remote, std::function<void()> next)
      PARALET_REQUIRES(progress_lock_);
  bool hold(Peer& peer, unsigned index, const handshake::Frame& frame) PARALET_REQUIRES(progress_lock_);
  void create_fresh_qp(Peer& peer, unsigned index, std::uint16_t port, unsigned member, std::function<void(bool)> next)
      PARALET_REQUIRES(progress_lock_);
  void connect_fresh_qp(Peer& peer, unsigned index, const RemoteQp& remote, std::function<void(bool)> next)
      PARALET_REQUIRES(progress_lock_);

  // device_control.cpp: peers and connections
  void send_frame(Peer& peer, const handshake::Frame& frame) PARALET_REQUIRES(progress_lock_);
  void on_listen_readable(Door& door) PARALET_REQUIRES(progress_lock_);
  void on_channel_event(int fd, std::uint32_t events) PARALET_REQUIRES(progress_lock_);
  void on_frames(Peer& peer, const std::vector<handshake::Frame>& frames) PARALET_REQUIRES(progress_lock_);
  void on_channel_closed(Peer& peer, unsigned member) PARALET_REQUIRES(progress_lock_);
  void fail_unreachable(Peer& peer, Failure failure, const std::string& why) PARALET_REQUIRES(progress_lock_);
  [[nodiscard]] bool token_matches(std::uint32_t listener, const handshake::Token& token) const
      PARALET_REQUIRES(progress_lock_);
  Peer& add_peer(const IpAddress& address, const handshake::Guid& device, std::size_t lanes,
                 std::unique_ptr<Channel> channel) PARALET_REQUIRES(progress_lock_);
  [[nodiscard]] handshake::Endpoint endpoint(const Peer& peer) const PARALET_REQUIRES(progress_lock_);
  [[nodiscard]] Peer* find_peer(const handshake::Handle& target, unsigned lanes) const PARALET_REQUIRES(progress_lock_);
  Peer* welcome(Incoming& incoming, const handshake::Hello& hello) PARALET_REQUIRES(progress_lock_);
  void drop_qp(std::uint32_t qpn) PARALET_REQUIRES(progress_lock_);
  void drop_qps(const Peer& peer) PARALET_REQUIRES(progress_lock_);
  void fail_peer(Peer& peer, Failure failure, const std::string& error) PARALET_REQUIRES(progress_lock_);
  void reap_peers(Nanos now) PARALET_REQUIRES(progress_lock_);
  void start_connect(const std::shared_ptr<Connection>& connection) PARALET_REQUIRES(progress_lock_);
  Peer* start_peer(Connection& connection) PARALET_REQUIRES(progress_lock_);
  void send_connect(Peer& peer, const Connection& connection) PARALET_REQUIRES(progress_lock_);
  [[nodiscard]] std::shared_ptr<Connection> find_connection(const Peer& peer, std::uint32_t id) const
      PARALET_REQUIRES(progress_lock_);
  void stop_sending(Connection& connection, const std::string& why) PARALET_REQUIRES(progress_lock_);
  [[nodiscard]] static std::string why_closed(const Connection& connection);
  void begin_close(const std::shared_ptr<Connection>& connection) PARALET_REQUIRES(progress_lock_);
  void on_close(Connection& connection) PARALET_REQUIRES(progress_lock_);
  void fail_receives(Connection& connection, const std::string& error) PARALET_REQUIRES(progress_lock_);
  void advance_close(Connection& connection) PARALET_REQUIRES(progress_lock_);
  void finalize(Connection& connection) PARALET_REQUIRES(progress_lock_);
  void abandon(Connection& connection, Failure failure, const std::string& error) PARALET_REQUIRES(progress_lock_);

  // Frames from a ready or connecting peer.
  void on_frame(Peer& peer, const handshake::Frame& frame) PARALET_REQUIRES(progress_lock_);
  void on(Peer& peer, const handshake::Hello& frame) PARALET_REQUIRES(progress_lock_);
  void on(Peer& peer, const handshake::Welcome& frame) PARALET_REQUIRES(progress_lock_);
  void on(Peer& peer, const handshake::Refuse& frame) PARALET_REQUIRES(progress_lock_);
  void on(Peer& peer, const handshake::Connect& frame) PARALET_REQUIRES(progress_lock_);
  void on(Peer& peer, const handshake::Accept& frame) PARALET_REQUIRES(progress_lock_);
  void on(Peer& peer, const handshake::Reject& frame) PARALET_REQUIRES(progress_lock_);
  void on(Peer& peer, const handshake::Close& frame) PARALET_REQUIRES(progress_lock_);
  void on(Peer& peer, const handshake::Closed& frame) PARALET_REQUIRES(progress_lock_);
  void on(Peer& peer, const handshake::Overrun& frame) PARALET_REQUIRES(progress_lock_);
  void on(Peer& peer, const handshake::NewQp& frame) PARALET_REQUIRES(progress_lock_);
  void on(Peer& peer, const handshake::QpReady& frame) PARALET_REQUIRES(progress_lock_);
  void on(Peer& peer, const handshake::QpDrained& frame) PARALET_REQUIRES(progress_lock_);
  void on(Peer& peer, const handshake::QpStopped& frame) PARALET_REQUIRES(progress_lock_);
  void on(Peer& peer, const handshake::Join& frame) PARALET_REQUIRES(progress_lock_);
  void on(Peer& peer, const handshake::MemberDown& frame) PARALET_REQUIRES(progress_lock_);
  void on(Peer& peer, const handshake::Numbered& frame) PARALET_REQUIRES(progress_lock_);

  // device_fusion.cpp: several NICs as one
  [[nodiscard]] const IpAddress& own_address(unsigned member) const;
  [[nodiscard]] Fusion::Start first_start() const PARALET_REQUIRES(progress_lock_);
  [[nodiscard]] std::optional<Fusion::Start> next_start(const Fusion::Start& failed, bool opened) const
      PARALET_REQUIRES(progress_lock_);
  [[nodiscard]] static bool fits(const Peer& peer, const handshake::Endpoint& remote);
  [[nodiscard]] std::string misfit_of(const handshake::Endpoint& remote, const Fusion::Start& start) const
      PARALET_REQUIRES(progress_lock_);
  static void take_members(Peer& peer, const handshake::Endpoint& remote);
  [[nodiscard]] std::vector<handshake::Endpoint::Member> further_members(const Peer& peer) const
      PARALET_REQUIRES(progress_lock_);
  [[nodiscard]] static RemoteQp remote_qp(const Peer& peer, const QpIdentity& qp, const Ece& ece);
  void begin_fusion(Peer& peer) PARALET_REQUIRES(progress_lock_);
  void send_on_all(Peer& peer, const handshake::Frame& frame) PARALET_REQUIRES(progress_lock_);
  void acknowledge_frames(Peer& peer) PARALET_REQUIRES(progress_lock_);
  Peer* join(Incoming& incoming, const handshake::Join& frame) PARALET_REQUIRES(progress_lock_);
  void open_channel(Peer& peer, unsigned member, Nanos now) PARALET_REQUIRES(progress_lock_);
  void on_not_opened(Peer& peer, unsigned member, const std::string& why) PARALET_REQUIRES(progress_lock_);
  void on_joined(Peer& peer, unsigned member) PARALET_REQUIRES(progress_lock_);
  [[nodiscard]] static bool has_other_path(const Peer& peer, unsigned member);
  void leave_member(Peer& peer, unsigned member, const std::string& why, bool tell) PARALET_REQUIRES(progress_lock_);
  static void note_member(Peer& peer, unsigned lane, const Completion& completion);
  [[nodiscard]] bool unusable(unsigned member) const PARALET_REQUIRES(progress_lock_);
  void watch_members(Peer& peer, Nanos now) PARALET_REQUIRES(progress_lock_);
  void leave_silent_members(Peer& peer, Nanos now) PARALET_REQUIRES(progress_lock_);
  void ping_path(Peer& peer, unsigned member) PARALET_REQUIRES(progress_lock_);
  bool works_beside(Peer& peer, unsigned suspect, std::span<const Nanos> silent_since) PARALET_REQUIRES(progress_lock_);
  void move_lanes(Peer& peer) PARALET_REQUIRES(progress_lock_);

  // Constant once the device is open.
  DeviceOptions options_;
  OwnerProcess owner_;
  std::uint32_t path_mtu_ = 0;
  std::vector<DeviceNic> nics_;
  handshake::Guid guid_{};
  bool watches_lanes_ = false;    ///< PathPolicy::watches_lanes
  bool follows_traffic_ = false;  ///< PathPolicy::follows_traffic
  Backend* registrar_ = nullptr;  ///< `backend_`, if any thread may register memory with it
  std::shared_ptr<Polling> polling_ = std::make_shared<Polling>();
  FileDescriptor epoll_;  ///< what the progress thread sleeps on

  // Any thread.
  std::atomic<unsigned> waiting_{0};            ///< threads that wait for the progress lock: pollers let them
  std::atomic<Request*> submitted_{nullptr};    ///< stack of requests that found the progress lock held
  std::atomic<const void*> idle_for_{nullptr};  ///< request of the last poll_for, if that found nothing
  std::atomic<unsigned> registering_{0};  ///< threads that register or deregister memory without the progress lock
  std::atomic<bool> stop_{false};         ///< ends the progress thread
  std::atomic<bool> closed_{false};
  std::atomic<std::uint64_t> failed_{0};  ///< failed requests

  Mutex progress_lock_;

  /// nullptr once the device is closed
  std::unique_ptr<Backend> backend_ PARALET_GUARDED_BY(progress_lock_) PARALET_PT_GUARDED_BY(progress_lock_);
  std::unique_ptr<PathPolicy> policy_ PARALET_GUARDED_BY(progress_lock_) PARALET_PT_GUARDED_BY(progress_lock_);
  /// Creates and connects QPs; nullptr until it is needed.
  std::unique_ptr<Worker> setup_thread_ PARALET_GUARDED_BY(progress_lock_);
  /// Registers and deregisters the engine's own registrations; nullptr until it is needed.
  std::unique_ptr<Worker> memory_thread_ PARALET_GUARDED_BY(progress_lock_);
  std::vector<std::unique_ptr<Peer>> peers_ PARALET_GUARDED_BY(progress_lock_);
  std::size_t pumped_ PARALET_GUARDED_BY(progress_lock_) = 0;  ///< index of the next peer in pump's round robin
  std::unordered_map<std::uint32_t, QpOwner> qp_owners_ PARALET_GUARDED_BY(progress_lock_);
  std::unordered_map<std::uint32_t, std::shared_ptr<Connection>> connections_ PARALET_GUARDED_BY(progress_lock_);
  std::unordered_map<std::uint32_t, std::pair<std::shared_ptr<Listener>, handshake::Token>> listeners_
      PARALET_GUARDED_BY(progress_lock_);
  std::vector<Incoming> incoming_ PARALET_GUARDED_BY(progress_lock_);  ///< oldest first
  std::vector<Door> doors_ PARALET_GUARDED_BY(progress_lock_);         ///< by member; empty: the device does not listen
  bool listening_paused_ PARALET_GUARDED_BY(progress_lock_) = false;   ///< the process may open no more descriptors
  std::uint32_t next_id_ PARALET_GUARDED_BY(progress_lock_) = 1;
  std::vector<std::byte> receive_buffers_ PARALET_GUARDED_BY(progress_lock_);
  /// rkeys deregistered while receives into them were open
  std::vector<std::uint32_t> retired_ PARALET_GUARDED_BY(progress_lock_);
  std::vector<Peer*> advertising_ PARALET_GUARDED_BY(progress_lock_);  ///< peers whose `gathering` is not sent yet
  RequestList fences_ PARALET_GUARDED_BY(progress_lock_);              ///< posted and not finished
  std::vector<Completion> completions_ PARALET_GUARDED_BY(progress_lock_);
  /// requests finished: release_progress_lock wakes the threads that wait
  bool finished_ PARALET_GUARDED_BY(progress_lock_) = false;
  unsigned rounds_ PARALET_GUARDED_BY(progress_lock_) = 0;
  Nanos next_housekeeping_ PARALET_GUARDED_BY(progress_lock_) = 0;
  Nanos next_release_ PARALET_GUARDED_BY(progress_lock_) = 0;
  MessageCounters messages_ PARALET_GUARDED_BY(progress_lock_);  ///< without those that failed
  LiveCounters live_counters_ PARALET_GUARDED_BY(progress_lock_);
  /// when the progress thread wakes by itself, 0: it is awake
  Nanos sleeping_until_ PARALET_GUARDED_BY(progress_lock_) = 0;

  std::thread thread_;
};

}  // namespace paralet
