// SPDX-License-Identifier: Apache-2.0
// What the data path and the client of the path service share, so that neither waits for the other: events one way
// through a bounded queue, assignments the other way as an immutable table with a serial number beside it.
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

namespace paralet::controller {

/// A queue of fixed size between one thread that pushes and one that pops.
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

/// What the service said last about the lanes towards one peer.
struct PeerPaths {
  std::vector<std::uint16_t> ports;  ///< of lane 0, 1, .., repeated where there are more lanes; empty: ECMP
  double rate_bps = 0;               ///< 0: no limit
  std::uint64_t answers = 0;         ///< the elephant whose announcement this answers, 0: none
  // These grow with every word about any peer, also from connection to connection.
  std::uint64_t serial = 0;       ///< of the ports: a word that changes nothing but the rate is none about them
  std::uint64_t rate_serial = 0;  ///< of the whole, at least `serial`
  std::uint64_t cut_serial = 0;   ///< of the last word that said that the path before it is dead
};

/// Everything that holds now. Peers that are not named take ECMP.
struct Assignments {
  bool connected = false;
  std::uint64_t connection = 0;  ///< counts comings and goings of the service: another one, and all before is void
  std::unordered_map<PeerName, PeerPaths> peers;
};

class Link {
 public:
  Link() : wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

  // -- the data path, with the device's progress lock held ---------------------------------------------------------

  /// Tells the client. False when the queue is full.
  bool say(const Event& event) {
    if (!events_.push(event)) return false;
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (asleep_.load(std::memory_order_relaxed)) wake();
    return true;
  }
  /// Whether there may be something to take.
  [[nodiscard]] bool news() const { return published_.load(std::memory_order_acquire) != taken_; }
  /// The newest table, nullptr when there is none that is new or the client is writing just now.
  std::shared_ptr<const Assignments> take() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return nullptr;
    taken_ = published_.load(std::memory_order_relaxed);
    return std::exchange(fresh_, nullptr);
  }

  // -- the client's thread ----------------------------------------------------------------------------------------

  bool hear(Event& event) { return events_.pop(event); }
  void publish(std::shared_ptr<const Assignments> assignments) {
    const std::lock_guard lock(mutex_);
    fresh_ = std::move(assignments);
    published_.fetch_add(1, std::memory_order_release);
  }
  /// Says that this thread will wait for wake_fd(). False when there is something to hear already.
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
  std::uint64_t taken_ = 0;  // the data path's
  std::mutex mutex_;         // the data path only tries it
  std::shared_ptr<const Assignments> fresh_;
};

}  // namespace paralet::controller
