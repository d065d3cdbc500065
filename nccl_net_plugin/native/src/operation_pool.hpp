// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/request.hpp"
#include "profiler.hpp"

namespace paralet::plugin {

class DataComm;

/// A request of NCCL: one send or up to eight grouped receives. Each part is a request of the engine.
struct Operation {
  DataComm* comm = nullptr;
  unsigned count = 0;                           ///< parts in progress; 0: the operation is free
  std::vector<ProfiledMessage> profiled;        ///< by part
  std::vector<std::shared_ptr<Request>> parts;  ///< reused
};

/// The operations of one comm. The pool grows to the largest number that was ever in use at once, up to its capacity;
/// after that it does not allocate.
class OperationPool {
 public:
  OperationPool(DataComm* comm, std::size_t capacity) : comm_(comm), capacity_(capacity) {}

  /// Takes a free operation with `parts` engine requests, to be filled in. nullptr when all are in use.
  Operation* take(std::size_t parts);
  void give_back(Operation& operation);

  /// Appends the unfinished requests of all operations.
  void pending(std::vector<std::shared_ptr<Request>>& out);

 private:
  // NCCL posts and tests on one thread, but closes on another.
  std::mutex mutex_;
  DataComm* comm_;
  std::size_t capacity_;
  std::deque<Operation> operations_;  ///< a deque keeps their addresses
  std::vector<Operation*> free_;      ///< last in, first out: the most recent one is in the cache
};

}  // namespace paralet::plugin
