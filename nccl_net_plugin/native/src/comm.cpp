// SPDX-License-Identifier: Apache-2.0
#include "comm.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "core.hpp"
#include "log.hpp"
#include "plugin_error.hpp"

namespace paralet::plugin {
namespace {

/// A send comm holds as many messages as its peer may have open receives.
constexpr std::size_t kOperations = NCCL_NET_MAX_REQUESTS;

std::size_t capacity(DataComm::Direction direction) {
  return direction == DataComm::Direction::kSend ? kOperations * kMaxReceives : kOperations;
}

/// Ignores a closed device, which has closed its connections too.
void start_closing(Device& device, const std::shared_ptr<Connection>& connection) {
  try {
    device.close_connection(connection);
  } catch (const TransportError&) {  // NOLINT(bugprone-empty-catch): another thread closed the device
  }
}

}  // namespace

// -- listening ---------------------------------------------------------------------------------------------------

ListenComm::ListenComm(std::shared_ptr<Device> device) : device_(std::move(device)), listener_(device_->listen()) {}

ListenComm::~ListenComm() {
  try {
    device_->stop_listening(listener_);
  } catch (const TransportError&) {  // NOLINT(bugprone-empty-catch): a closed device has no listeners
  }
}

std::shared_ptr<Connection> ListenComm::accept() { return listener_->accept(); }

// -- messages ----------------------------------------------------------------------------------------------------

DataComm::DataComm(std::shared_ptr<Device> device, std::shared_ptr<Connection> connection, Direction direction)
    : device_(std::move(device)),
      connection_(std::move(connection)),
      direction_(direction),
      messages_(this, capacity(direction)),
      fences_(this, kOperations) {}

DataComm::~DataComm() {
  std::vector<std::shared_ptr<Request>> pending;
  messages_.pending(pending);
  fences_.pending(pending);
  const bool sending = !pending.empty() || connection_->copies.load(std::memory_order_acquire) > 0;
  if (!sending && direction_ == Direction::kSend) {
    start_closing(*device_, connection_);
    return;
  }
  // A receiver waits even without pending messages, until its peer knows that all messages have arrived: the process
  // may end next, and then nothing acknowledges them.
  const auto until = direction_ == Direction::kReceive ? Device::Closing::kBothSides : Device::Closing::kSent;
  const bool answered = device_->close_and_wait(connection_, pending, until);
  if (sending && (!answered || connection_->failure == Failure::kTransport)) {
    log_warning("closing a connection: " + format_address(connection_->peer_address) +
                " does not answer, unfinished messages are dropped");
  }
}

void DataComm::check(const Transfer& transfer) const {
  const char* why = nullptr;
  if (transfer.bytes > kMaxMessageBytes) {
    why = " bytes exceed maxP2pBytes";
  } else if (transfer.memory != nullptr) {
    if (!transfer.memory->holds(transfer.data, transfer.bytes))
      why = " bytes exceed the memory that was registered for them";
  } else if (transfer.data == nullptr && transfer.bytes > 0) {
    why = " bytes at the address NULL";
  }
  if (why == nullptr) return;
  throw PluginError(ncclInvalidArgument, std::string(verb()) + " " + format_address(connection_->peer_address) + ": " +
                                             std::to_string(transfer.bytes) + why);
}

ncclResult_t DataComm::post(std::span<const Transfer> transfers, Operation** operation) {
  std::array<std::uint32_t, kMaxReceives> rkeys{};
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    check(transfers[i]);
    if (transfers[i].memory != nullptr) rkeys[i] = Core::instance().rkey_for(*transfers[i].memory, device_);
  }
  *operation = messages_.take(transfers.size());
  if (*operation == nullptr) return ncclSuccess;
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    const Transfer& transfer = transfers[i];
    const std::shared_ptr<Request>& request = (*operation)->parts[i];
    request->kind = direction_ == Direction::kSend ? Request::Kind::kSend : Request::Kind::kReceive;
    request->connection = connection_;
    request->data = static_cast<std::byte*>(transfer.data);
    request->length = transfer.bytes;
    request->tag = static_cast<std::uint32_t>(transfer.tag);
    const bool registered = transfer.memory != nullptr;
    request->rkey = registered ? rkeys[i] : 0;
    request->region_offset =
        registered && transfer.bytes > 0 ? static_cast<std::uint64_t>(request->data - transfer.memory->base) : 0;
    (*operation)->profiled[i].start(*request, transfer.profiled, connection_->peer_address.ipv4());
    device_->submit(request);
  }
  return ncclSuccess;
}

ncclResult_t DataComm::fence(const Memory& memory, void* data, Operation** operation) {
  if (!memory.holds(data, 1)) {
    log_warning("iflush: the address is outside the memory that was registered for it");
    return ncclInvalidArgument;
  }
  *operation = fences_.take(1);
  if (*operation == nullptr) {  // NCCL takes a missing request for a finished flush
    log_warning("iflush: a connection can have at most " + std::to_string(kOperations) + " flushes in progress");
    return ncclInternalError;
  }
  const std::shared_ptr<Request>& request = (*operation)->parts[0];
  request->kind = Request::Kind::kFence;
  request->rkey = memory.rkey;
  request->region_offset = static_cast<std::uint64_t>(static_cast<std::byte*>(data) - memory.base);
  request->bytes = 0;
  device_->submit(request);
  return ncclSuccess;
}

ncclResult_t DataComm::test(Operation& operation, bool* done, std::span<int> bytes) {
  const auto finished = [&operation](const Request** failed) {
    bool all = true;
    for (unsigned i = 0; i < operation.count; ++i) {
      const Request& request = *operation.parts[i];
      const Request::State state = request.state.load(std::memory_order_acquire);
      if (state == Request::State::kFailed) *failed = &request;
      if (state == Request::State::kPending) all = false;
    }
    return all;
  };
  const Request* failed_part = nullptr;
  *done = finished(&failed_part);
  if (!*done && failed_part == nullptr) {
    device_->poll_for(&operation);
    *done = finished(&failed_part);
  }
  for (unsigned i = 0; i < operation.count; ++i) {
    ProfiledMessage& profiled = operation.profiled[i];
    const Request& request = *operation.parts[i];
    if (*done || failed_part != nullptr) {
      profiled.stop(request);
    } else {
      profiled.follow(request);
    }
  }
  // A failed operation is not reused: other parts may still be in progress, and NCCL gives the comm up anyway.
  if (failed_part != nullptr) return report_failure(failed_part->failure, failed_part->error);
  if (!*done) {
    if (connection_->given_up) return report_failure(connection_->failure, connection_->error);
    return ncclSuccess;
  }
  const std::size_t known = std::min<std::size_t>(bytes.size(), operation.count);
  for (std::size_t i = 0; i < known; ++i) bytes[i] = static_cast<int>(operation.parts[i]->bytes);
  const bool fence = operation.parts[0]->kind == Request::Kind::kFence;
  (fence ? fences_ : messages_).give_back(operation);
  return ncclSuccess;
}

ncclResult_t DataComm::report_failure(Failure failure, const std::string& error) {
  log_warning(std::string(verb()) + " " + format_address(connection_->peer_address) + " failed: " + error);
  return failure == Failure::kDevice ? ncclSystemError : ncclRemoteError;
}

}  // namespace paralet::plugin
