// SPDX-License-Identifier: Apache-2.0
#include "profiler.hpp"

#include <atomic>
#include <memory>

#include "paralet_profiler.h"

namespace paralet::plugin {
namespace {

// Types of NCCL's callback (ncclProfilerNetEvent*). NCCL 2.26 takes every type but kStart for a stop.
constexpr int kStart = 0;
constexpr int kUpdateAndStop = 3;

std::atomic<ncclProfilerCallback_t> current{nullptr};

paraletProfilerEvent_v1_t event_of(const Request& request, const FlowletTrace::Flowlet& flowlet, std::uint32_t peer) {
  return {.type = PARALET_PROFILE_FLOWLET,
          .receive = static_cast<std::uint8_t>(request.kind == Request::Kind::kReceive),
          .source_port = flowlet.port,
          .lane = flowlet.lane,
          .qp = flowlet.qpn,
          .peer = peer,
          .bytes = flowlet.bytes,
          .began_ns = flowlet.began,
          .ended_ns = flowlet.ended.load(std::memory_order_acquire)};
}

void* begin(void* handle, paraletProfilerEvent_v1_t data) {
  void* event = nullptr;
  data.ended_ns = 0;
  current.load(std::memory_order_relaxed)(&event, kStart, handle, PARALET_PROFILER_ID, &data);
  return event;
}

void end(void** event, paraletProfilerEvent_v1_t data) {
  if (*event == nullptr) return;
  current.load(std::memory_order_relaxed)(event, kUpdateAndStop, nullptr, PARALET_PROFILER_ID, &data);
  *event = nullptr;
}

paraletProfilerEvent_v1_t event_of(const Request& request, std::uint32_t peer, std::int64_t began) {
  const bool done = request.state.load(std::memory_order_acquire) == Request::State::kDone;
  return {.type = PARALET_PROFILE_MESSAGE,
          .receive = static_cast<std::uint8_t>(request.kind == Request::Kind::kReceive),
          .source_port = 0,
          .lane = 0,
          .qp = 0,
          .peer = peer,
          .bytes = done ? request.bytes : request.length,
          .began_ns = began,
          .ended_ns = done ? now() : 0};
}

}  // namespace

void set_profiler(ncclProfilerCallback_t callback) noexcept { current.store(callback, std::memory_order_relaxed); }

void ProfiledMessage::start(Request& request, void* handle, std::uint32_t peer) {
  handle_ = nullptr;
  if (request.trace) request.trace.reset();
  if (handle == nullptr || current.load(std::memory_order_relaxed) == nullptr) return;
  began_ = now();
  request.state.store(Request::State::kPending, std::memory_order_relaxed);
  // NCCL leaves the event alone when no profiler is loaded, or when it has not asked for events of the network.
  event_ = begin(handle, event_of(request, peer, began_));
  if (event_ == nullptr) return;
  handle_ = handle;
  peer_ = peer;
  flowlets_.clear();
  request.trace = std::make_unique<FlowletTrace>();
}

void ProfiledMessage::follow(const Request& request) {
  if (handle_ == nullptr) return;
  const FlowletTrace& trace = *request.trace;
  const std::size_t begun = trace.size();
  while (flowlets_.size() < begun) {
    flowlets_.push_back(begin(handle_, event_of(request, trace[flowlets_.size()], peer_)));
  }
  for (std::size_t i = 0; i < flowlets_.size(); ++i) {
    if (flowlets_[i] == nullptr) continue;
    const paraletProfilerEvent_v1_t data = event_of(request, trace[i], peer_);
    if (data.ended_ns != 0) end(&flowlets_[i], data);
  }
}

void ProfiledMessage::stop(const Request& request) {
  if (handle_ == nullptr) return;
  follow(request);
  for (std::size_t i = 0; i < flowlets_.size(); ++i) end(&flowlets_[i], event_of(request, (*request.trace)[i], peer_));
  end(&event_, event_of(request, peer_, began_));
  handle_ = nullptr;
}

}  // namespace paralet::plugin
