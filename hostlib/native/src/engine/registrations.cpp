// SPDX-License-Identifier: Apache-2.0
#include "engine/registrations.hpp"

#include <thread>
#include <utility>

#include "base/errors.hpp"
#include "base/signal.hpp"

namespace paralet {

Registrations::Registrations(Context& context, ProgressLock& lock, Shard& shard)
    : context_(context), lock_(lock), shard_(shard) {
  progress_lock.assume_held();  // no other thread knows the device yet
  if (shard_.backend().registers_concurrently()) registrar_ = &shard_.backend();
}

// -- requests ------------------------------------------------------------------------------------------------------

bool Registrations::register_ahead(Request& request) {
  if (!concurrent() || request.kind == Request::Kind::kFence || request.rkey != 0) return true;
  ++registering_;
  const Leaving leaving(registering_);
  if (context_.closed) return false;  // the end of the device waits for `registering_` after `closed`
  register_temporarily(request, *registrar_);
  return true;
}

void Registrations::register_for(Request& request) {
  if (request.rkey == 0 && !concurrent()) register_temporarily(request, shard_.backend());
}

void Registrations::register_temporarily(Request& request, Backend& backend) {
  request.temporary_rkey = request.kind == Request::Kind::kReceive
                               ? backend.register_memory(request.data, request.length)
                               : backend.register_source(request.data, request.length);
}

bool Registrations::end_after_release(Request& request, Request::State state) {
  const std::uint32_t rkey = std::exchange(request.temporary_rkey, 0);
  if (rkey == 0 || !shard_.open()) return false;
  if (!concurrent() || context_.stop) {
    shard_.backend().deregister_memory(rkey);
    return false;
  }
  on_thread([registrar = registrar_, rkey, state, own = request.shared_from_this()] {
    registrar->deregister_memory(rkey);
    own->state.store(state, std::memory_order_release);
    completion_signal().notify();
  });
  return true;
}

// -- batches -------------------------------------------------------------------------------------------------------

void Registrations::register_batch(Peer& peer, const std::shared_ptr<AdvertisementBatch>& batch) {
  const auto source = [batch](Backend& backend) -> std::uint32_t {
    try {
      return backend.register_source(batch->bytes.data(), batch->bytes.size());
    } catch (const DeviceError&) {
      return 0;
    }
  };
  if (!concurrent()) {
    batch->memory = source(shard_.backend());
    return;
  }
  batch->registers = true;
  if (context_.stop) return;
  ++peer.setups;
  on_thread([this, &peer, batch, source] {
    const std::uint32_t memory = source(*registrar_);
    {
      const ProgressGuard guard(lock_);
      --peer.setups;
      if (!peer.dead()) {
        batch->memory = memory;
        batch->registers = memory == 0;
        return;
      }
    }
    registrar_->deregister_memory(memory);
  });
}

void Registrations::release_batches(std::vector<std::shared_ptr<AdvertisementBatch>> batches) {
  const auto release = [batches = std::move(batches)](Backend& backend) {
    for (const auto& batch : batches) {
      if (batch->memory != 0) backend.deregister_memory(batch->memory);
    }
  };
  if (!concurrent() || context_.stop) {
    release(shard_.backend());
  } else {
    on_thread([release, registrar = registrar_] { release(*registrar); });
  }
}

// -- retired memory ------------------------------------------------------------------------------------------------

void Registrations::retire(const std::vector<std::uint32_t>& rkeys) {
  try {
    for (const std::uint32_t rkey : rkeys) with_backend([=](Backend& backend) { backend.retire_memory(rkey); });
  } catch (const DeviceError&) {  // NOLINT(bugprone-empty-catch): a closed device uses no memory
  }
}

void Registrations::deregister_retired(std::uint32_t rkey) {
  std::erase(retired_, rkey);
  shard_.backend().deregister_memory(rkey);
}

// -- threads -------------------------------------------------------------------------------------------------------

void Registrations::on_thread(std::function<void()> job) {
  if (!thread_) thread_ = std::make_unique<Worker>();
  thread_->add(std::move(job));
}

void Registrations::wait_for_others() const {
  while (registering_ != 0) std::this_thread::yield();
}

}  // namespace paralet
