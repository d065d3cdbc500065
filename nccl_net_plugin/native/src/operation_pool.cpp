// SPDX-License-Identifier: Apache-2.0
#include "operation_pool.hpp"

namespace paralet::plugin {
Operation* OperationPool::take(std::span<const Memory* const> memories) {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    if (operations_.size() == capacity_) return nullptr;
    free_.reserve(operations_.size() + 1);  // so that give_back does not allocate
    free_.push_back(&operations_.emplace_back());
    free_.back()->comm = comm_;
  }
  Operation& operation = *free_.back();
  if (operation.parts.size() < memories.size()) operation.parts.resize(memories.size());
  for (std::size_t i = 0; i < memories.size(); ++i) {
    Operation::Part& part = operation.parts[i];
    if (!part.request) part.request = std::make_shared<Request>();
    part.memory = memories[i];
  }
  operation.count = static_cast<unsigned>(memories.size());
  free_.pop_back();
  return &operation;
}

void OperationPool::give_back(Operation& operation) {
  const std::lock_guard lock(mutex_);
  operation.count = 0;
  free_.push_back(&operation);
}

}  // namespace paralet::plugin
