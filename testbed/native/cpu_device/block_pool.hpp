// SPDX-License-Identifier: Apache-2.0
// Threads for the blocks of kernels. A block may wait for any other, here or in another process, so every block that
// was started has a thread of its own.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

namespace paralet::cpu_device {

class BlockPool {
 public:
  BlockPool() = default;
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Calls body(0) to body(blocks - 1), all at the same time, body(0) on this thread, and returns after all.
  // `body` must not throw.
  void run(unsigned blocks, const std::function<void(unsigned)>& body);

 private:
  void start(std::function<void()> block);
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  std::size_t idle_ = 0;  // threads that wait for a block
};

}  // namespace paralet::cpu_device
