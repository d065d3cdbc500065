// SPDX-License-Identifier: Apache-2.0
// Registered memory. Pinning pages takes long, so where the back end allows it (Backend::registers_concurrently) it
// happens without the progress lock: on the caller's thread, or for the engine's own registrations on a memory thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/worker.hpp"
#include "engine/context.hpp"
#include "engine/peer.hpp"
#include "engine/progress_lock.hpp"
#include "engine/request.hpp"
#include "engine/shard.hpp"

namespace paralet {

class Registrations {
 public:
  Registrations(Context& context, ProgressLock& lock, Shard& shard);

  // -- any thread -------------------------------------------------------------------------------------------------
  /// Whether `register_ahead` and `with_backend` do without the progress lock.
  [[nodiscard]] bool concurrent() const { return registrar_ != nullptr; }
  /// Registers the memory of a request before it takes the progress lock, where that is possible. False when the device
  /// is closed. Throws DeviceError when the back end refuses.
  bool register_ahead(Request& request);
  /// Calls `use` with the back end, without the progress lock where the back end allows that. Throws DeviceError when
  /// the device is closed.
  template <typename Use>
  auto with_backend(Use use) {
    Backend* backend = nullptr;
    {
      const ProgressGuard guard(lock_);
      shard_.require_open();
      lock_.start_submitted();
      if (!concurrent()) return use(shard_.backend());
      backend = &shard_.backend();
      ++registering_;
    }
    const Leaving leaving(registering_);
    return use(*backend);
  }
  /// Returns memory that is `retired` to its owner while messages may still arrive for it: the back end drops their
  /// data.
  void retire(const std::vector<std::uint32_t>& rkeys);

  // -- requests ---------------------------------------------------------------------------------------------------
  /// Registers the memory of a request that has no registration, for this request alone, unless `register_ahead` has.
  /// Throws DeviceError when the back end refuses.
  void register_for(Request& request) PARALET_REQUIRES(progress_lock);
  /// Deregisters what was registered for this request, which no QP uses any more. Where that takes long the memory
  /// thread does it, and ends the request afterwards: the NIC must not reach memory that the caller has back. False:
  /// the caller ends the request.
  bool end_after_release(Request& request, Request::State state) PARALET_REQUIRES(progress_lock);

  // -- batches of receive advertisements --------------------------------------------------------------------------
  /// Registers the memory of a batch, which may be used meanwhile. Where that is refused, it is never registered.
  void register_batch(Peer& peer, const std::shared_ptr<AdvertisementBatch>& batch) PARALET_REQUIRES(progress_lock);
  void release_batches(std::vector<std::shared_ptr<AdvertisementBatch>> batches) PARALET_REQUIRES(progress_lock);

  // -- memory that was taken back while receives into it were open ------------------------------------------------
  [[nodiscard]] bool retired(std::uint32_t rkey) const PARALET_REQUIRES(progress_lock) {
    return std::ranges::find(retired_, rkey) != retired_.end();
  }
  /// Before the call of `retire`. Once for each rkey.
  void note_retired(std::uint32_t rkey) PARALET_REQUIRES(progress_lock) { retired_.push_back(rkey); }
  /// No receive into it is open any more.
  void deregister_retired(std::uint32_t rkey) PARALET_REQUIRES(progress_lock);

  // -- the end of the device --------------------------------------------------------------------------------------
  /// The caller destroys the thread without the lock, which the end of a job takes.
  std::unique_ptr<Worker> take_thread() PARALET_REQUIRES(progress_lock) { return std::move(thread_); }
  /// Waits for the threads that use the back end; `Context::closed` keeps further ones away.
  void wait_for_others() const;

 private:
  /// Counts a thread for as long as it exists. The thread has counted itself in.
  class Leaving {
   public:
    explicit Leaving(std::atomic<unsigned>& threads) : threads_(threads) {}
    Leaving(const Leaving&) = delete;
    Leaving& operator=(const Leaving&) = delete;
    ~Leaving() { --threads_; }

   private:
    std::atomic<unsigned>& threads_;
  };

  static void register_temporarily(Request& request, Backend& backend);
  void on_thread(std::function<void()> job) PARALET_REQUIRES(progress_lock);

  Context& context_;
  ProgressLock& lock_;
  Shard& shard_;
  Backend* registrar_ = nullptr;          ///< the back end, if any thread may register memory with it; constant
  std::atomic<unsigned> registering_{0};  ///< threads that register or deregister memory without the progress lock
  /// Registers and deregisters the engine's own registrations; nullptr until it is needed.
  std::unique_ptr<Worker> thread_ PARALET_GUARDED_BY(progress_lock);
  std::vector<std::uint32_t> retired_ PARALET_GUARDED_BY(progress_lock);
};

}  // namespace paralet
