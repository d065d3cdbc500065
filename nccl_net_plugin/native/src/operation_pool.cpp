// SPDX-License-Identifier: Apache-2.0
#include "operation_pool.hpp"

namespace paralet::plugin {

Operation* OperationPool::take(std::size_t parts) {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    if (operations_.size() == capacity_) return nullptr;
    free_.reserve(operations_.size() + 1);  // so that give_back does not allocate
    free_.push_back(&operations_.emplace_back());
    free_.back()->comm = comm_;
  }
  Operation& operation = *free_.back();
  while (operation.parts.size() < parts) operation.parts.push_back(std::make_shared<Request>());
  operation.profiled.resize(operation.parts.size());
  operation.count = static_cast<unsigned>(parts);
  free_.pop_back();
  return &operation;
}

void OperationPool::give_back(Operation& operation) {
  const std::lock_guard lock(mutex_);
  operation.count = 0;
  free_.push_back(&operation);
}

void OperationPool::pending(std::vector<std::shared_ptr<Request>>& out) {
  const std::lock_guard lock(mutex_);
  for (const Operation& operation : operations_) {
    for (unsigned i = 0; i < operation.count; ++i) {
      const auto& request = operation.parts[i];
      if (request->state.load(std::memory_order_acquire) == Request::State::kPending) out.push_back(request);
    }
  }
}

}  // namespace paralet::plugin
