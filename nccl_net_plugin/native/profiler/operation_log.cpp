// SPDX-License-Identifier: Apache-2.0
#include "operation_log.hpp"

#include <algorithm>
#include <string_view>

namespace paralet::profiler {
namespace {

enum class Kind : std::uint8_t { kOperation = 1, kTransfers = 2, kStep = 3, kMessage = 4 };

// Of a handle, from the lowest bit: kind (8), step modulo kSteps (8), index (16), generation (32).
constexpr OperationLog::Handle handle_of(Kind kind, std::size_t index, std::uint32_t generation,
                                         std::size_t step = 0) noexcept {
  return static_cast<OperationLog::Handle>(kind) | step << 8U | index << 16U |
         static_cast<OperationLog::Handle>(generation) << 32U;
}
constexpr Kind kind_of(OperationLog::Handle handle) noexcept { return static_cast<Kind>(handle & 0xFFU); }
constexpr std::size_t step_of(OperationLog::Handle handle) noexcept { return handle >> 8U & 0xFFU; }
constexpr std::size_t index_of(OperationLog::Handle handle) noexcept { return handle >> 16U & 0xFFFFU; }
constexpr std::uint32_t generation_of(OperationLog::Handle handle) noexcept {
  return static_cast<std::uint32_t>(handle >> 32U);
}

constexpr std::string_view text(const char* words) noexcept { return words == nullptr ? "" : words; }

}  // namespace

OperationLog::Slot* OperationLog::slot_of(Handle handle) {
  if (kind_of(handle) != Kind::kOperation || index_of(handle) >= kOperations) return nullptr;
  Slot& slot = slots_[index_of(handle)];
  return slot.generation == generation_of(handle) ? &slot : nullptr;
}

OperationLog::Place* OperationLog::place_of(Handle handle) {
  const Kind kind = kind_of(handle);
  if (kind != Kind::kTransfers && kind != Kind::kStep && kind != Kind::kMessage) return nullptr;
  if (index_of(handle) >= kTransfers) return nullptr;
  Place& place = places_[index_of(handle)];
  return place.open && place.generation == generation_of(handle) ? &place : nullptr;
}

OperationLog::Handle OperationLog::enqueue(const std::shared_ptr<const Communicator>& communicator,
                                           const Enqueued& what, std::int64_t now_ns) {
  for (std::size_t tried = 0; tried < kOperations; ++tried) {
    const std::size_t index = next_slot_;
    next_slot_ = (next_slot_ + 1) % kOperations;
    Slot& slot = slots_[index];
    if (slot.open != 0) continue;
    slot.generation += 1;
    Operation& operation = slot.operation;
    operation = Operation{};
    operation.communicator = communicator;
    operation.function = text(what.function);
    operation.type = text(what.type);
    operation.algorithm = text(what.algorithm);
    operation.protocol = text(what.protocol);
    operation.sequence = what.sequence;
    operation.count = what.count;
    operation.number = ++numbered_;
    operation.peer = what.peer;
    operation.enqueued_ns = now_ns;
    return handle_of(Kind::kOperation, index, slot.generation);
  }
  return 0;
}

OperationLog::Handle OperationLog::begin(Handle operation, const Transfers& transfers, std::int64_t now_ns) {
  Slot* const slot = slot_of(operation);
  if (slot == nullptr) return 0;
  for (std::size_t tried = 0; tried < kTransfers; ++tried) {
    const std::size_t index = next_place_;
    next_place_ = (next_place_ + 1) % kTransfers;
    Place& place = places_[index];
    if (place.open) continue;
    place = {.transfers = transfers, .operation = operation, .generation = place.generation + 1, .open = true};
    slot->open += 1;
    slot->operation.ended_ns = 0;
    if (slot->operation.began_ns == 0) slot->operation.began_ns = now_ns;
    return handle_of(Kind::kTransfers, index, place.generation);
  }
  return 0;
}

OperationLog::Handle OperationLog::begin_step(Handle transfers, int step, std::int64_t now_ns) {
  Place* const place = place_of(transfers);
  if (place == nullptr || step < 0) return 0;
  const std::size_t slot = static_cast<std::size_t>(step) % kSteps;
  place->steps[slot] = {.number = step, .on = place->transfers.send ? Wait::kGpu : Wait::kNetwork, .since_ns = now_ns};
  return handle_of(Kind::kStep, index_of(transfers), place->generation, slot);
}

void OperationLog::waits(Handle step, Wait on, std::int64_t now_ns) {
  Place* const place = kind_of(step) == Kind::kStep && step_of(step) < kSteps ? place_of(step) : nullptr;
  if (place == nullptr) return;
  Step& which = place->steps[step_of(step)];
  if (which.on == on) return;
  which.on = on;
  which.since_ns = now_ns;
}

OperationLog::Handle OperationLog::begin_message(Handle step, const paraletProfilerEvent_v1_t& data) {
  Place* const place = kind_of(step) == Kind::kStep && step_of(step) < kSteps ? place_of(step) : nullptr;
  if (place == nullptr) return 0;
  Step& which = place->steps[step_of(step)];
  which.begun = true;
  which.posted = which.posted || data.type == PARALET_PROFILE_FLOWLET;
  return handle_of(Kind::kMessage, index_of(step), place->generation, step_of(step));
}

void OperationLog::tell(Handle message, const paraletProfilerEvent_v1_t& data) {
  const Place* const place = kind_of(message) == Kind::kMessage ? place_of(message) : nullptr;
  Slot* const slot = place == nullptr ? nullptr : slot_of(place->operation);
  if (slot == nullptr || data.ended_ns == 0) return;
  Operation& operation = slot->operation;
  if (data.type == PARALET_PROFILE_MESSAGE) {
    (data.receive != 0 ? operation.received_bytes : operation.sent_bytes) += data.bytes;
  } else if (data.type == PARALET_PROFILE_FLOWLET && data.receive == 0) {
    const std::int64_t duration = data.ended_ns - data.began_ns;
    operation.flowlets += 1;
    operation.flowlets_ns += duration;
    if (duration > operation.slowest.duration_ns) {
      operation.slowest = {.duration_ns = duration, .lane = data.lane, .peer = data.peer, .port = data.source_port};
    }
  }
}

void OperationLog::stop(Handle handle, std::int64_t now_ns) {
  Place* const place = place_of(handle);
  if (place == nullptr) return;  // of an operation: NCCL has enqueued it, which says nothing about its end
  if (kind_of(handle) == Kind::kStep && step_of(handle) < kSteps) {
    place->steps[step_of(handle)].on = Wait::kNothing;
  } else if (kind_of(handle) == Kind::kTransfers) {
    place->open = false;
    Slot* const slot = slot_of(place->operation);
    if (slot != nullptr && --slot->open == 0) slot->operation.ended_ns = now_ns;
  }
}

std::vector<Operation> OperationLog::report(std::size_t most) const {
  std::vector<const Slot*> reported;
  std::vector<const Slot*> ended;
  for (const Slot& slot : slots_) {
    if (slot.open != 0) reported.push_back(&slot);
    if (slot.open == 0 && slot.operation.began_ns != 0) ended.push_back(&slot);
  }
  const auto by_number = [](const Slot* a, const Slot* b) { return a->operation.number < b->operation.number; };
  std::ranges::sort(ended, by_number);
  reported.insert(reported.end(), ended.end() - static_cast<std::ptrdiff_t>(std::min(most, ended.size())), ended.end());
  std::ranges::sort(reported, by_number);
  std::vector<Operation> operations;
  operations.reserve(reported.size());
  for (const Slot* slot : reported) operations.push_back(slot->operation);
  for (const Place& place : places_) {
    if (!place.open) continue;
    const std::uint64_t number = slots_[index_of(place.operation)].operation.number;
    const auto found = std::ranges::lower_bound(operations, number, {}, &Operation::number);
    const Step* oldest = nullptr;
    for (const Step& step : place.steps) {
      if (step.on != Wait::kNothing && (oldest == nullptr || step.number < oldest->number)) oldest = &step;
    }
    if (oldest == nullptr || found == operations.end() || found->number != number) continue;
    const bool unmatched = place.transfers.send && oldest->begun && !oldest->posted;
    found->waits.push_back({.transfers = place.transfers,
                            .step = oldest->number,
                            .on = oldest->on == Wait::kNetwork && unmatched ? Wait::kPeer : oldest->on,
                            .since_ns = oldest->since_ns});
  }
  for (Operation& operation : operations) {
    std::ranges::sort(operation.waits, {}, &Waiting::since_ns);
    if (operation.waits.size() > kWaitsReported) operation.waits.resize(kWaitsReported);
  }
  return operations;
}

}  // namespace paralet::profiler
