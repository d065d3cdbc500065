// SPDX-License-Identifier: Apache-2.0
#include "engine/results.hpp"

#include "base/errors.hpp"
#include "base/signal.hpp"

namespace paralet {

std::string overrun_text(std::uint64_t message_bytes, std::uint64_t receive_bytes) {
  return "a message of " + std::to_string(message_bytes) + " bytes met a receive of " + std::to_string(receive_bytes) +
         ": receive at least as much as is sent";
}

bool Results::register_memory(Request& request) {
  try {
    registrations_.register_for(request);
    return true;
  } catch (const DeviceError& error) {
    note_end(request);
    report_failure(request, Failure::kDevice, error.what());
    return false;
  }
}

bool Results::register_ahead(Request& request) {
  try {
    if (registrations_.register_ahead(request)) return true;
    report_failure(request, Failure::kDevice, "the device is closed");
  } catch (const DeviceError& error) {
    report_failure(request, Failure::kDevice, error.what());
  }
  return false;
}

void Results::finish(Request& request) {
  note_end(request);
  if (request.kind != Request::Kind::kFence) {
    const bool send = request.kind == Request::Kind::kSend;
    ++(send ? messages_.sends : messages_.receives);
    (send ? messages_.send_bytes : messages_.receive_bytes) += request.bytes;
  }
  if (registrations_.end_after_release(request, Request::State::kDone)) return;
  context_.finished = true;
  request.state.store(Request::State::kDone, std::memory_order_release);
}

void Results::fail(Request& request, Failure failure, const std::string& error) {
  note_end(request);
  note_failure(request, failure, error);
  if (registrations_.end_after_release(request, Request::State::kFailed)) return;
  request.state.store(Request::State::kFailed, std::memory_order_release);
  completion_signal().notify();
}

void Results::report_failure(Request& request, Failure failure, const std::string& error) {
  note_failure(request, failure, error);
  request.state.store(Request::State::kFailed, std::memory_order_release);
  completion_signal().notify();
}

void Results::note_failure(Request& request, Failure failure, const std::string& error) {
  failed_.fetch_add(1, std::memory_order_relaxed);
  request.failure = failure;
  request.error = error;
}

MessageCounters Results::counters() const {
  MessageCounters out = messages_;
  out.failed = failed_.load(std::memory_order_relaxed);
  return out;
}

}  // namespace paralet
