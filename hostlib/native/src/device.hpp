// SPDX-License-Identifier: Apache-2.0
// A device: one NIC address, its lanes, peers and connections, driven by one progress thread. Callers on any thread
// submit requests and poll them; everything else happens on the progress thread, without locks.
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

#include "backend.hpp"
#include "channel.hpp"
#include "fault_injector.hpp"
#include "handshake.hpp"
#include "path_policy.hpp"
#include "request.hpp"

namespace paralet {

struct DeviceOptions {
  std::uint32_t address = 0;  ///< IPv4, host byte order
  PolicyOptions policy;
  std::optional<std::uint32_t> path_mtu;       ///< nothing: the largest the link's MTU allows
  double line_rate_bps = 0;                    ///< 0: unknown, sends are not paced
  std::optional<Nanos> base_rtt;               ///< for S = 4 BDP / m; nothing: measured
  std::optional<std::uint64_t> flowlet_bytes;  ///< nothing: S = 4 BDP / m
  std::optional<std::uint64_t> mice_bytes;     ///< messages up to this size are one flowlet; nothing: one path MTU
  std::optional<Nanos> target_queue;           ///< queueing delay that congestion control aims at; nothing: by rate
  std::optional<Nanos> min_timeout;            ///< floor of the retransmission timeout
  Nanos retry_time = 10 * kSecond;             ///< a peer silent for so long is given up
  Nanos busy_poll = 0;                         ///< spin this long before sleeping
  Nanos idle_peer = 2 * kSecond;               ///< QPs of a peer without connections are dropped after this
  Faults faults;
};

struct LaneCounters {
  std::uint32_t peer = 0;
  unsigned lane = 0;
  std::uint32_t qpn = 0;
  PortMethod method = PortMethod::kSocket;
  std::uint64_t flowlets = 0;  ///< finished
  std::uint64_t moves = 0;     ///< changes of the source port
  QpStatistics qp;
};

struct DeviceCounters {
  std::vector<LaneCounters> lanes;
  Discards discards;
  std::size_t connections = 0;
  std::size_t peers = 0;
};

/// One lane towards one peer: a QP.
struct Lane {
  QpIdentity qp;
  std::uint16_t port = 0;
  unsigned outstanding = 0;  ///< flowlets posted and not finished
  std::uint64_t outstanding_bytes = 0;
  std::uint64_t flowlets = 0;
  std::uint64_t moves = 0;
  std::uint64_t timeouts_seen = 0;
  std::optional<std::uint16_t> moving_to;  ///< takes no flowlet until it is empty and has moved
};

/// Another device we share QPs with, and the TCP channel that keeps the two in step.
struct Peer {
  handshake::Guid device{};
  std::uint32_t address = 0;
  bool initiator = false;  ///< we connected to it
  bool ready = false;      ///< QPs are connected on both sides
  bool dead = false;       ///< nothing may use it; removed by the next housekeeping
  std::unique_ptr<Channel> channel;
  std::uint32_t path_mtu = 0;
  std::vector<Lane> lanes;
  std::size_t next_lane = 0;
  std::deque<Request*> sending;  ///< messages with flowlets to post, oldest first
  std::vector<Request*> slots;   ///< receives by slot
  std::vector<std::uint16_t> free_slots;
  std::vector<std::shared_ptr<Connection>> waiting;  ///< connecting sides that wait for `ready`
  std::size_t connections = 0;
  Nanos idle_since = 0;
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
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  /// Closes.
  ~Device();
  /// Closes every connection, waiting for peers up to `linger`, then stops. Requests still pending fail.
  void close(Nanos linger = 2 * kSecond);
  [[nodiscard]] bool closed() const { return closed_.load(); }

  std::shared_ptr<Listener> listen();
  /// Closes the listener; accepted connections stay.
  void stop_listening(const std::shared_ptr<Listener>& listener);
  /// Never blocks: watch the connection's state. Throws std::invalid_argument for a handle that is none.
  std::shared_ptr<Connection> connect(std::span<const std::byte> handle);
  /// Starts closing; done when the state is kClosed.
  void close_connection(const std::shared_ptr<Connection>& connection);

  /// Registers memory for receives; returns the rkey.
  std::uint32_t register_memory(std::byte* base, std::uint64_t length);
  void deregister_memory(std::uint32_t rkey);

  /// Hands a filled-in request to the progress thread. Its memory must stay until the state is no longer kPending.
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

  // device.cpp: the thread
  void run();
  void wait(Nanos until);
  void wake();
  void drain_submissions();
  void drain_tasks();
  void execute(std::function<void()> task);
  [[nodiscard]] Nanos next_deadline(Nanos now) const;
  void housekeeping(Nanos now);

  // device_data.cpp: messages
  void start(std::shared_ptr<Request> request);
  void start_receive(const std::shared_ptr<Request>& request);
  void add_offer(Peer& peer, const handshake::Offer& offer);
  void match(Connection& connection);
  void start_message(const std::shared_ptr<Request>& request, const handshake::Offer& offer);
  void post_flowlet(Lane& lane, Request& request);
  bool pump(Nanos now);
  [[nodiscard]] Lane* pick_lane(Peer& peer, bool any_depth);
  [[nodiscard]] std::uint64_t flowlet_size(const Peer& peer) const;
  void consult_policy(Peer& peer, unsigned lane);
  void move_lane(Lane& lane);
  void on_completion(const Completion& completion);
  void on_sent(Peer& peer, unsigned lane, const Completion& completion);
  void on_flowlet_arrived(Peer& peer, const Completion& completion);
  void finish(Request& request);
  void fail(Request& request, Failure failure, const std::string& error);
  void release_receive(Request& request);
  void post_receive_buffer(std::uint64_t index);

  // device_control.cpp: peers and connections
  void watch(int fd, bool write);
  void send_frame(Peer& peer, const handshake::Frame& frame);
  void on_listen_readable();
  void on_channel_event(int fd, std::uint32_t events);
  [[nodiscard]] bool token_matches(std::uint32_t listener, const handshake::Token& token) const;
  Peer& add_peer(std::uint32_t address, const handshake::Guid& device, std::size_t lanes);
  [[nodiscard]] handshake::Endpoint endpoint(const Peer& peer) const;
  void connect_lanes(Peer& peer, const handshake::Endpoint& remote);
  Peer& open_peer(const handshake::Handle& target);
  Peer* welcome(Incoming& incoming, const handshake::Hello& hello);
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
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<PathPolicy> policy_;
  std::uint32_t path_mtu_ = 0;
  std::uint16_t udp_port_ = 0;
  handshake::Guid guid_{};

  // Hand-over from callers: a lock-free stack of requests, and a locked list of rare tasks.
  std::atomic<Request*> submitted_{nullptr};
  std::mutex tasks_mutex_;
  std::vector<std::function<void()>> tasks_;
  std::atomic<bool> has_tasks_{false};
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> stop_{false};
  std::atomic<bool> closed_{false};
  std::atomic<bool> ended_{false};  ///< the progress thread takes no more submissions
  FileDescriptor wake_;
  FileDescriptor epoll_;

  // Progress thread only.
  struct QpOwner {
    Peer* peer;
    unsigned lane;
  };
  std::vector<std::unique_ptr<Peer>> peers_;
  std::unordered_map<std::uint32_t, QpOwner> qp_owners_;
  std::unordered_map<std::uint32_t, std::shared_ptr<Connection>> connections_;
  std::unordered_map<std::uint32_t, std::pair<std::shared_ptr<Listener>, handshake::Token>> listeners_;
  std::vector<Incoming> incoming_;
  FileDescriptor listen_socket_;
  std::uint16_t listen_port_ = 0;
  std::uint32_t next_id_ = 1;
  std::vector<std::byte> receive_buffers_;
  std::vector<Completion> completions_;
  Nanos next_housekeeping_ = 0;

  std::thread thread_;
};

}  // namespace paralet
