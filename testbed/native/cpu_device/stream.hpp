// SPDX-License-Identifier: Apache-2.0
// A queue of work that runs in order on a thread of its own.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "completion.hpp"

namespace paralet::cpu_device {

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  // `blocking`: it is ordered with the default stream (cudaStreamDefault).
  Stream(bool blocking, int priority, unsigned long long id) : blocking_(blocking), priority_(priority), id_(id) {}

  bool blocking() const { return blocking_; }
  int priority() const { return priority_; }
  unsigned long long id() const { return id_; }

  // Queues `work`, which may be empty, behind what is there; it starts after `after` have happened as well.
  // The first call starts the thread.
  CompletionPtr submit(std::function<void()> work, std::vector<CompletionPtr> after = {});

  // The end of what was queued last; null where that is over.
  CompletionPtr pending() const;
  bool idle() const { return pending() == nullptr; }

  // No more work comes. The thread ends after what is queued.
  void close();

 private:
  struct Task {
    std::function<void()> work;
    std::vector<CompletionPtr> after;
    CompletionPtr end;
  };

  void run();

  const bool blocking_;
  const int priority_;
  const unsigned long long id_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  CompletionPtr last_;
  bool started_ = false;
  bool closed_ = false;
};

}  // namespace paralet::cpu_device
