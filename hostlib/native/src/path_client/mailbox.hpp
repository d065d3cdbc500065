// SPDX-License-Identifier: Apache-2.0
// Exchange between the data path and the thread of the path client. Neither waits for the other: events go to the
// client through a bounded queue, assignments come back as an immutable table with a serial number.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/file_descriptor.hpp"
#include "path_client/messages.hpp"

namespace paralet::path_client {

/// A lock-free queue of fixed size between one thread that pushes and one that pops.
template <typename T, std::size_t kSize>
class SpscQueue {
  static_assert((kSize & (kSize - 1)) == 0);

 public:
  /// False when it is full.
  bool push(const T& value) {
    const std::size_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_.load(std::memory_order_acquire) == kSize) return false;
    slots_[tail & (kSize - 1)] = value;
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }
  /// False when it is empty.
  bool pop(T& value) {
    const std::size_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return false;
    value = slots_[head & (kSize - 1)];
    head_.store(head + 1, std::memory_order_release);
    return true;
  }
  [[nodiscard]] bool empty() const {
    return head_.load(std::memory_order_acquire) == tail_.load(std::memory_order_acquire);
  }

 private:
  std::array<T, kSize> slots_{};
  alignas(64) std::atomic<std::size_t> head_{0};
  alignas(64) std::atomic<std::size_t> tail_{0};
};

/// The last assignment of the service for the lanes to one peer.
struct PeerPaths {
  std::vector<std::uint16_t> ports;  ///< of lane 0, 1, .., repeated where there are more lanes; empty: ECMP
  double rate_bps = 0;               ///< bits per second, 0: no limit
  std::uint64_t answers = 0;         ///< id of the elephant whose announcement this answers, 0: none
  std::vector<Path> paths;           ///< as in `Assign`
  // Serial numbers of assignments, over all peers and all connections.
  std::uint64_t serial = 0;       ///< of the last one for the ports; one that changes only the rate does not count
  std::uint64_t rate_serial = 0;  ///< of the last one, at least `serial`
  std::uint64_t cut_serial = 0;   ///< of the last one that declared the path before it dead
};

/// All current assignments. Peers that are not named use ECMP.
struct Assignments {
  bool connected = false;
  bool measured = false;         ///< paths of ports are those that this host has probed; else they follow the routes
  std::uint64_t connection = 0;  ///< changes when the connection is lost, which voids all assignments before
  std::unordered_map<PeerName, PeerPaths> peers;
};

class Mailbox {
 public:
  Mailbox() : wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

  // -- the data path, with the device's progress lock held ---------------------------------------------------------

  /// Passes an event to the client. False when the queue is full.
  bool post(const Event& event) {
    if (!events_.push(event)) return false;
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (asleep_.load(std::memory_order_relaxed)) wake();
    return true;
  }
  /// Whether there may be a new table: one load.
  [[nodiscard]] bool has_update() const { return published_.load(std::memory_order_acquire) != taken_; }
  /// The newest table. nullptr when none is new, or while the client is writing one.
  std::shared_ptr<const Assignments> take_update() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return nullptr;
    taken_ = published_.load(std::memory_order_relaxed);
    return std::exchange(fresh_, nullptr);
  }

  // -- the client's thread ----------------------------------------------------------------------------------------

  bool next_event(Event& event) { return events_.pop(event); }
  void publish(std::shared_ptr<const Assignments> assignments) {
    const std::lock_guard lock(mutex_);
    fresh_ = std::move(assignments);
    published_.fetch_add(1, std::memory_order_release);
  }
  /// Announces that this thread will wait for wake_fd(). False when there are events already.
  bool fall_asleep() {
    asleep_.store(true, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (events_.empty()) return true;
    asleep_.store(false, std::memory_order_relaxed);
    return false;
  }
  void wake_up() {
    asleep_.store(false, std::memory_order_relaxed);
    std::uint64_t ignored = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &ignored, sizeof ignored);
  }
  [[nodiscard]] int wake_fd() const { return wake_.get(); }

  // -- any thread -------------------------------------------------------------------------------------------------

  void wake() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  }

 private:
  static constexpr std::size_t kEvents = 1024;
  SpscQueue<Event, kEvents> events_;
  std::atomic<bool> asleep_{false};
  FileDescriptor wake_;

  std::atomic<std::uint64_t> published_{0};
  std::uint64_t taken_ = 0;  // only the data path uses it
  std::mutex mutex_;         // the data path only tries to lock it
  std::shared_ptr<const Assignments> fresh_;
};

}  // namespace paralet::path_client
