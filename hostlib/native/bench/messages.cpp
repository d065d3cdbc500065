// SPDX-License-Identifier: Apache-2.0
#include "messages.hpp"

#include <algorithm>
#include <stdexcept>
#include <string_view>

#include "base/errors.hpp"

namespace paralet::bench {

std::shared_ptr<Request> prepared(const std::shared_ptr<Connection>& connection, Request::Kind kind,
                                  std::span<std::byte> buffer, std::uint32_t rkey) {
  auto request = std::make_shared<Request>();
  request->kind = kind;
  request->connection = connection;
  request->data = buffer.data();
  request->length = buffer.size();
  request->rkey = rkey;
  return request;
}

void set_back_end(DeviceOptions& options, const std::string& name) {
  const auto& all = paralet::options();
  const auto option = std::ranges::find(all, std::string_view("backend"), &Option::name);
  try {
    set_option(options, *option, name);
  } catch (const OptionNotAllowed&) {
    throw std::invalid_argument("the back end must be " + allowed_values(*option) + ", not " + name);
  }
}

bool ended(const Request& request) { return request.state.load(std::memory_order_acquire) != Request::State::kPending; }

void check_done(const Request& request) {
  if (request.state.load(std::memory_order_acquire) == Request::State::kFailed) throw TransportError(request.error);
}

void wait_done(Device& device, const Request& request) {
  device.wait([&] { return ended(request); }, std::nullopt);
  check_done(request);
}

std::shared_ptr<Connection> accept(Device& device, Listener& listener) {
  std::shared_ptr<Connection> connection;
  device.wait(
      [&] {
        connection = listener.accept();
        return connection != nullptr;
      },
      std::nullopt);
  return connection;
}

void wait_open(Device& device, const Connection& connection) {
  device.wait([&] { return connection.state != Connection::State::kConnecting; }, std::nullopt);
  if (connection.failure != Failure::kNone) throw TransportError(connection.error);
}

}  // namespace paralet::bench
