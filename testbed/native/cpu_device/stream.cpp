// SPDX-License-Identifier: Apache-2.0
#include "stream.hpp"

#include <thread>
#include <utility>

namespace paralet::cpu_device {

CompletionPtr Stream::submit(std::function<void()> work, std::vector<CompletionPtr> after) {
  auto end = std::make_shared<Completion>();
  const std::lock_guard lock(mutex_);
  if (!started_) {
    // Detached: cudaStreamDestroy does not wait, and the thread holds the stream.
    std::thread([self = shared_from_this()] { self->run(); }).detach();
    started_ = true;
  }
  tasks_.push_back({.work = std::move(work), .after = std::move(after), .end = end});
  last_ = end;
  changed_.notify_one();
  return end;
}

CompletionPtr Stream::pending() const {
  const std::lock_guard lock(mutex_);
  return last_ != nullptr && !last_->done() ? last_ : nullptr;
}

void Stream::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_one();
}

void Stream::run() {
  for (;;) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return closed_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    for (const auto& before : task.after) before->wait();
    if (task.work) task.work();
    task.end->complete();
  }
}

}  // namespace paralet::cpu_device
