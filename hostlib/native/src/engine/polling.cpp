// SPDX-License-Identifier: Apache-2.0
#include "engine/polling.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <ctime>
#include <thread>

namespace paralet {

Polling::Polling() : wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

void Polling::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void Polling::woken() {
  std::uint64_t ignored = 0;
  [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &ignored, sizeof ignored);
}

void Polling::stop() {
  if (owner_.inherited()) return;
  polled_at_.store(0, std::memory_order_seq_cst);
  if (!standing_back_.load(std::memory_order_seq_cst)) return;
  ++stopping_;
  if (!closed_) wake();
  --stopping_;
}

void Polling::begin() {
  thread_local std::weak_ptr<Polling> before;
  const std::weak_ptr<Polling> own = weak_from_this();
  if (!before.owner_before(own) && !own.owner_before(before)) return;
  if (const auto other = before.lock()) other->stop();
  before = own;
}

bool Polling::stands_back() {
  standing_back_.store(true, std::memory_order_seq_cst);
  if (now() - polled_at_.load(std::memory_order_seq_cst) < kStandBack) {
    const timespec timeout{.tv_sec = 0, .tv_nsec = kStandBack};
    pollfd waited{.fd = wake_.get(), .events = POLLIN, .revents = 0};
    ::ppoll(&waited, 1, &timeout, nullptr);
    woken();
    return true;
  }
  standing_back_.store(false, std::memory_order_relaxed);
  return false;
}

void Polling::close() {
  closed_ = true;
  while (stopping_ != 0) std::this_thread::yield();  // wake_'s number may soon be another descriptor's
  wake_.reset();
}

}  // namespace paralet
