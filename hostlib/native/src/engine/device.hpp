// SPDX-License-Identifier: Apache-2.0
// A device: one NIC address, its lanes, peers and connections. One thread at a time holds the progress lock: a
// caller that submits or polls, or else the device's own progress thread, which stands back while callers poll.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "backend/backend.hpp"
#include "base/ring.hpp"
#include "base/signal.hpp"
#include "engine/channel.hpp"
#include "engine/handshake.hpp"
#include "engine/live_counters.hpp"
#include "engine/options.hpp"
#include "engine/path_policy.hpp"
#include "engine/request.hpp"
#include "path_client/policy.hpp"

namespace paralet {

struct LaneCounters {
  std::uint32_t peer = 0;
  unsigned lane = 0;
  std::uint32_t qpn = 0;
  PortMethod method = PortMethod::kSocket;
  std::uint64_t flowlets = 0;  ///< finished
  std::uint64_t moves = 0;     ///< changes of the source port
  QpStatistics qp;
};

/// Finished requests. Bytes are those of messages, each counted once however often its packets were sent.
struct MessageCounters {
  std::uint64_t sends = 0;
  std::uint64_t send_bytes = 0;
  std::uint64_t receives = 0;
  std::uint64_t receive_bytes = 0;
  std::uint64_t failed = 0;
};

struct DeviceCounters {
  std::vector<LaneCounters> lanes;
  MessageCounters messages;
  Discards discards;
  std::size_t connections = 0;
  std::size_t peers = 0;
  std::optional<ControllerCounters> controller;  ///< with the policy of this name
};

/// A lane's QP gives way to a fresh one beside it: so a lane moves where a QP's source port is fixed. What has been
/// posted stays with the old one, which goes when both sides have nothing left on it.
struct Renewal {
  QpIdentity qp;           ///< the fresh one, or, once the lane has taken that, the old one
  std::uint16_t port = 0;  ///< of the fresh one
  bool connected = false;  ///< ours; the peer's is when it says so, and then the lane takes the fresh one
  bool taken = false;
  unsigned unfinished = 0;               ///< work posted on the old one, from then on
  bool drained = false;                  ///< we have told the peer that there is none
  bool peer_drained = false;             ///< it has told us
  std::optional<handshake::NewQp> next;  ///< of the peer, which is rid of its old one before us
};

/// One lane towards one peer: a QP. What is looked at of all lanes to choose one comes first, in a cache line.
struct alignas(64) Lane {
  std::optional<std::uint16_t> moving_to;  ///< takes no flowlet until it is empty and has moved
  unsigned outstanding = 0;                ///< flowlets posted and not finished
  unsigned unfinished = 0;                 ///< the same with advertisements
  std::uint64_t outstanding_bytes = 0;
  std::unique_ptr<Renewal> renewal;  ///< of few lanes, and an idle lane is to be small: like `former`
  PathEstimate rested;               ///< when its last work was finished: holds until it gets more
  QpIdentity qp;
  std::uint16_t port = 0;
  std::uint64_t flowlets = 0;
  std::uint64_t moves = 0;
  std::uint64_t timeouts_seen = 0;
  std::unique_ptr<QpCounters> former;  ///< of QPs that it had before

  /// The port that it has, or is about to have.
  [[nodiscard]] std::uint16_t heading() const { return renewal && !renewal->taken ? renewal->port : port; }
};

/// Advertisements on their way to a peer in one SEND; the memory of its payload.
struct AdvertisementBatch {
  static constexpr std::size_t kMaxAdvertisements = 12;
  std::array<std::byte, kMaxAdvertisements * handshake::kAdvertisementBytes> bytes;
  std::size_t count = 0;
  Lane* lane = nullptr;      ///< that carries it
  bool repeated = false;     ///< on another lane, since this one is silent
  std::uint32_t memory = 0;  ///< registration of `bytes`, 0: none
};

/// Another device we share QPs with, and the TCP channel that keeps the two in step.
struct Peer {
  handshake::Guid device{};
  std::uint32_t address = 0;
  std::uint16_t udp_port = 0;          ///< where it receives packets; known when it is ready
  bool initiator = false;              ///< we connected to it
  bool ready = false;                  ///< QPs are connected on both sides
  bool dead = false;                   ///< nothing may use it; removed by the next housekeeping
  bool heard = false;                  ///< since the last housekeeping
  bool advertisements_urgent = false;  ///< the sender may be waiting for them
  std::unique_ptr<Channel> channel;
  std::uint32_t path_mtu = 0;
  std::uint16_t max_ip_id = kDefaultMaxIpId;  ///< of its packets
  std::vector<Lane> lanes;
  std::size_t next_lane = 0;
  Lane* small_lane = nullptr;  ///< of small messages for a while, so that their acknowledgements go together
  unsigned small_left = 0;     ///< messages until another lane is looked for
  Nanos small_rtt = 0;         ///< when it was chosen
  AdvertisementBatch* gathering = nullptr;  ///< advertisements not sent yet: they go together
  Nanos advertisements_since = 0;
  std::vector<std::unique_ptr<AdvertisementBatch>> batches;
  std::vector<AdvertisementBatch*> spare_batches;
  Ring<Request*> sending;       ///< messages with flowlets to post, oldest first
  std::vector<Request*> slots;  ///< receives by slot
  std::vector<std::uint16_t> free_slots;
  std::vector<std::shared_ptr<Connection>> waiting;  ///< connecting sides that wait for `ready`
  std::size_t connections = 0;
  Nanos idle_since = 0;
  Nanos quiet_since = 0;

  [[nodiscard]] PeerName name() const { return {address, udp_port}; }
};

/// Where connections to a device arrive.
struct Listener {
  std::array<std::byte, handshake::kHandleBytes> handle{};
  std::uint32_t id = 0;
  std::mutex mutex;
  std::deque<std::shared_ptr<Connection>> arrived;
};

class Device {
 public:
  /// Throws DeviceError.
  explicit Device(const DeviceOptions& options);
  /// The same over a back end that is there already.
  Device(const DeviceOptions& options, std::unique_ptr<Backend> backend);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  /// Closes.
  ~Device();
  /// Closes every connection, waiting for peers up to `timeout`, then stops. Requests still pending fail.
  void close(Nanos timeout = 2 * kSecond);
  /// Also in a forked child, which has neither the device's thread nor a share in its QPs: there it does nothing.
  [[nodiscard]] bool closed() const { return closed_.load() || inherited(); }

  std::shared_ptr<Listener> listen();
  /// Closes the listener; accepted connections stay.
  void stop_listening(const std::shared_ptr<Listener>& listener);
  /// Never blocks: watch the connection's state. Throws std::invalid_argument for a handle that is none.
  std::shared_ptr<Connection> connect(std::span<const std::byte> handle);
  /// Starts closing; done when the state is kClosed.
  void close_connection(const std::shared_ptr<Connection>& connection);
  /// For a peer that does not answer a close: all memory of the connection's requests is the caller's again. Flowlets
  /// that QPs hold can only be taken back with the QPs, so where there are any the whole peer is given up. Memory that
  /// was advertised is retired, also for other connections that use the same registration.
  void give_up(const std::shared_ptr<Connection>& connection);

  /// Registers memory for receives; returns the rkey.
  std::uint32_t register_memory(std::byte* base, std::uint64_t length);
  /// Registers memory of another device for sends and receives: Backend::register_device_memory.
  std::uint32_t register_device_memory(std::byte* base, std::uint64_t length, std::optional<DmaBuf> dmabuf);
  /// The memory is the caller's again at once. Receives into it that are open fail when their message comes.
  void deregister_memory(std::uint32_t rkey);

  /// Moves packets on the calling thread if no other thread is doing so. Progress never depends on it: whoever waits
  /// busily calls it to save the hand-over to the progress thread.
  void poll() { poll(now()); }
  /// Polls for `busy_poll`, then sleeps, until `ready` holds or `timeout` has passed (nothing: for ever). Returns the
  /// last value of `ready`.
  template <typename Predicate>
  bool wait(Predicate ready, std::optional<Nanos> timeout) {
    for (const Nanos start = now(); !ready();) {
      const Nanos t = now();
      const Nanos waited = t - start;
      if (timeout && waited >= *timeout) return ready();
      if (waited >= options_.busy_poll) {
        stop_polling();
        return completion_signal().wait(ready, timeout ? std::optional(*timeout - waited) : std::nullopt);
      }
      poll(t);
    }
    return true;
  }
  /// Says that this thread will sleep: the progress thread need not stand back any longer.
  void stop_polling();

  /// Starts a filled-in request. Its memory must stay until the state is no longer kPending.
  void submit(const std::shared_ptr<Request>& request);

  /// Moves a lane of every peer at this address to another source port, between flowlets. False: no such peer.
  bool set_port(std::uint32_t peer_address, unsigned lane, std::uint16_t port);

  DeviceCounters counters();
  [[nodiscard]] std::uint32_t path_mtu() const { return path_mtu_; }
  [[nodiscard]] std::uint16_t udp_port() const { return udp_port_; }
  [[nodiscard]] const DeviceOptions& options() const { return options_; }

 private:
  struct Incoming {
    std::unique_ptr<Channel> channel;
    std::uint32_t address;
    Nanos until;
  };

  // device.cpp: the progress lock and the thread
  class ProgressLockGuard;
  [[nodiscard]] bool inherited() const;
  void poll(Nanos now);
  void run();
  bool step(Nanos now);
  void look();
  void settle(Nanos now);
  void release_progress_lock();
  void wake();
  void start_submitted();
  void execute(const std::function<void()>& task);
  [[nodiscard]] bool callers_poll() const;
  [[nodiscard]] Nanos next_deadline(Nanos now) const;
  void housekeeping(Nanos now);
  [[nodiscard]] bool awaits(const Peer& peer) const;
  void release_spare();
  [[nodiscard]] DeviceCounters collect() const;

  // device_data.cpp: messages
  void start(std::shared_ptr<Request> request);
  void start_receive(const std::shared_ptr<Request>& request);
  void start_fence(std::shared_ptr<Request> request);
  void on_fenced(const Completion& completion);
  void send_advertisements(Peer& peer);
  void post_advertisements(Lane& lane, AdvertisementBatch& batch);
  void repeat_advertisements(Peer& peer);
  void ping(Peer& peer);
  AdvertisementBatch& spare_batch(Peer& peer);
  bool flush(Nanos now);
  void on_advertisements(Peer& peer, std::span<const std::byte> bytes);
  void add_advertisement(Peer& peer, const handshake::Advertisement& advertisement);
  void match(Connection& connection);
  void start_message(const std::shared_ptr<Request>& request, const handshake::Advertisement& advertisement);
  void post_flowlet(Lane& lane, Request& request, std::uint32_t path_mtu);
  bool pump(Nanos now);
  void post(Lane& lane, const WorkRequest& work);
  [[nodiscard]] Lane* pick_lane(Peer& peer, bool any_depth);
  [[nodiscard]] Lane& lane_for_small(Peer& peer);
  [[nodiscard]] std::uint64_t flowlet_size(const Peer& peer) const;
  void consult_policy(Peer& peer, unsigned lane, unsigned unheard = 0);
  [[nodiscard]] bool silent(const Lane& lane) const;
  void follow_controller();
  void tell_controller(Nanos now);
  void on_completion(const Completion& completion);
  void fail_lane(Peer& peer, unsigned lane, Status status);
  void on_sent(Peer& peer, unsigned lane, const Completion& completion);
  void on_received_send(Peer& peer, std::span<const std::byte> bytes);
  void on_flowlet_arrived(Peer& peer, std::uint32_t slot, std::uint32_t count, std::uint32_t bytes);
  void finish(Request& request);
  void fail(Request& request, Failure failure, const std::string& error);
  bool register_temporarily(Request& request);
  void release_memory(Request& request);
  void release_receive(Request& request);
  [[nodiscard]] bool awaited(std::uint32_t rkey) const;
  void retire(std::uint32_t rkey);
  [[nodiscard]] bool retired(std::uint32_t rkey) const;
  void post_receive_buffer(std::uint64_t index);

  // device_paths.cpp: lanes move to other ports
  [[nodiscard]] bool may_move(const Lane& lane) const;
  void move_lane(Peer& peer, unsigned index);
  void leave_dead_path(Peer& peer, unsigned index);
  bool create_fresh_qp(Peer& peer, unsigned index, std::uint16_t port);
  void on_new_qp(Peer& peer, const handshake::NewQp& frame);
  void on_qp_ready(Peer& peer, const handshake::QpReady& frame);
  void on_qp_drained(Peer& peer, const handshake::QpDrained& frame);
  void advance_renewal(Peer& peer, unsigned index);

  // device_control.cpp: peers and connections
  void watch(int fd, bool write);
  bool ignore(int fd);
  void send_frame(Peer& peer, const handshake::Frame& frame);
  void on_listen_readable();
  void on_channel_event(int fd, std::uint32_t events);
  [[nodiscard]] bool token_matches(std::uint32_t listener, const handshake::Token& token) const;
  Peer& add_peer(std::uint32_t address, const handshake::Guid& device, std::size_t lanes);
  [[nodiscard]] handshake::Endpoint endpoint(const Peer& peer) const;
  void connect_lanes(Peer& peer, const handshake::Endpoint& remote);
  Peer& open_peer(const handshake::Handle& target);
  Peer* welcome(Incoming& incoming, const handshake::Hello& hello);
  void drop_qp(std::uint32_t qpn);
  void drop_qps(const Peer& peer);
  void fail_peer(Peer& peer, Failure failure, const std::string& error);
  void reap_peers(Nanos now);
  void start_connect(const std::shared_ptr<Connection>& connection);
  void send_connect(Peer& peer, const Connection& connection);
  void on_connect(Peer& peer, const handshake::Connect& frame);
  void on_frame(Peer& peer, const handshake::Frame& frame);
  void stop_sending(Connection& connection, const std::string& why);
  void begin_close(const std::shared_ptr<Connection>& connection);
  void on_close(Connection& connection);
  void fail_receives(Connection& connection, const std::string& error);
  void advance_close(Connection& connection);
  void finalize(Connection& connection);
  void abandon(Connection& connection, Failure failure, const std::string& error);

  DeviceOptions options_;
  unsigned forks_;  ///< of the process when it was opened
  std::unique_ptr<Backend> backend_;
  std::uint32_t path_mtu_ = 0;
  std::uint16_t udp_port_ = 0;
  handshake::Guid guid_{};

  // Any thread. A request that finds the progress lock held waits on a lock-free stack for the holder.
  std::mutex progress_lock_;
  std::atomic<unsigned> waiting_{0};  ///< threads that wait for the progress lock: others let them
  std::atomic<Request*> submitted_{nullptr};
  std::atomic<Nanos> polled_at_{0};
  std::atomic<bool> standing_back_{false};
  std::atomic<unsigned> waking_{0};  ///< threads without the progress lock that write to wake_
  std::atomic<bool> stop_{false};
  std::atomic<bool> closed_{false};
  FileDescriptor wake_;
  FileDescriptor epoll_;

  std::unique_ptr<PathPolicy> policy_;
  ControllerPolicy* controller_ = nullptr;  ///< the policy, if it is this one

  // Only with the progress lock held.
  struct QpOwner {
    Peer* peer;
    unsigned lane;
  };
  std::vector<std::unique_ptr<Peer>> peers_;
  std::size_t pumped_ = 0;  ///< the peer whose flowlets lanes take next
  std::unordered_map<std::uint32_t, QpOwner> qp_owners_;
  std::unordered_map<std::uint32_t, std::shared_ptr<Connection>> connections_;
  std::unordered_map<std::uint32_t, std::pair<std::shared_ptr<Listener>, handshake::Token>> listeners_;
  std::vector<Incoming> incoming_;  ///< oldest first
  FileDescriptor listen_socket_;
  std::uint16_t listen_port_ = 0;
  bool listening_paused_ = false;  ///< the process may open no more descriptors
  std::uint32_t next_id_ = 1;
  std::vector<std::byte> receive_buffers_;
  std::vector<std::uint32_t> retired_;  ///< rkeys deregistered while receives into them were open
  std::vector<Peer*> advertising_;      ///< peers with advertisements not sent yet
  RequestList fences_;                  ///< under way
  std::vector<Completion> completions_;
  bool finished_ = false;  ///< requests are: sleepers are woken when the progress lock is released
  unsigned rounds_ = 0;
  Nanos next_housekeeping_ = 0;
  Nanos next_release_ = 0;
  MessageCounters messages_;              ///< without those that failed
  std::atomic<std::uint64_t> failed_{0};  ///< after close, on any thread
  LiveCounters live_counters_;
  Nanos sleeping_until_ = 0;  ///< when the progress thread looks again by itself, 0: soon

  std::thread thread_;
};

}  // namespace paralet
