// SPDX-License-Identifier: Apache-2.0
#include "collectives/links.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "base/limits.hpp"
#include "base/signal.hpp"

namespace paralet::collectives {
namespace {

constexpr Mailbox::Shape kMailShape{.slots = 16, .slot_bytes = Header::kBytes + Link::kMailBytes};
constexpr Mailbox::Shape kAnnounceShape{.slots = 8, .slot_bytes = Notice::kMostBytes};
constexpr Nanos kGracefulClose = 1 * kSecond;
constexpr Nanos kTimeToTell = 100 * kMillisecond;

std::shared_ptr<Request> new_request(Request::Kind kind, const std::shared_ptr<Connection>& connection,
                                     std::uint32_t tag, std::span<std::byte> data) {
  auto request = std::make_shared<Request>();
  request->kind = kind;
  request->connection = connection;
  request->tag = tag;
  request->data = data.data();
  request->length = data.size();
  return request;
}

}  // namespace

// -- mailboxes ---------------------------------------------------------------------------------------------------

Mailbox::Mailbox(Device& device, const std::shared_ptr<Connection>& connection, std::uint32_t tag, Shape shape,
                 std::byte* memory, std::uint32_t rkey, std::uint64_t offset)
    : device_(device), shape_(shape) {
  for (std::size_t i = 0; i < 2 * shape.slots; ++i) {
    const bool receives = i < shape.slots;
    const auto request = new_request(receives ? Request::Kind::kReceive : Request::Kind::kSend, connection, tag,
                                     {memory + i * shape.slot_bytes, shape.slot_bytes});
    request->rkey = rkey;
    request->region_offset = offset + i * shape.slot_bytes;
    request->state = Request::State::kDone;
    (receives ? receives_ : sends_).push_back(request);
    if (receives) device.submit(request);
  }
}

bool Mailbox::send(std::span<const std::byte> head, std::span<const std::byte> rest) {
  const std::shared_ptr<Request>& slot = sends_[next_send_];
  if (pending(*slot)) return false;
  if (slot->state.load(std::memory_order_acquire) == Request::State::kFailed) {
    throw LinkError{slot->failure, slot->error};
  }
  std::memcpy(slot->data, head.data(), head.size());
  if (!rest.empty()) std::memcpy(slot->data + head.size(), rest.data(), rest.size());
  slot->length = head.size() + rest.size();
  device_.submit(slot);
  next_send_ = (next_send_ + 1) % sends_.size();
  return true;
}

bool Mailbox::sent() const {
  return std::ranges::none_of(sends_, [](const auto& slot) { return pending(*slot); });
}

std::optional<std::span<const std::byte>> Mailbox::front() const {
  const Request& slot = *receives_[next_receive_];
  const Request::State state = slot.state.load(std::memory_order_acquire);
  if (state == Request::State::kPending) return std::nullopt;
  if (state == Request::State::kFailed) throw LinkError{slot.failure, slot.error};
  return std::span<const std::byte>(slot.data, slot.bytes);
}

void Mailbox::pop() {
  const std::shared_ptr<Request>& slot = receives_[next_receive_];
  next_receive_ = (next_receive_ + 1) % receives_.size();
  device_.submit(slot);
}

// -- links -------------------------------------------------------------------------------------------------------

Links::Links(std::shared_ptr<Device> device, int rank, int size)
    : device_(std::move(device)),
      rank_(rank),
      size_(size),
      listener_(device_->listen()),
      links_(static_cast<std::size_t>(size)) {}

Links::~Links() {
  if (device_->closed()) return;
  try {
    device_->stop_listening(listener_);
    for (const Link& link : links_) {
      if (link.rkey_ != 0) device_->deregister_memory(link.rkey_);
    }
  } catch (const TransportError&) {  // NOLINT(bugprone-empty-catch): another thread closed the device, which ends all
  }
}

void Links::set_handles(std::vector<std::array<std::byte, handshake::kHandleBytes>> handles) {
  for (std::size_t rank = 0; rank < handles.size(); ++rank) {
    if (!handshake::decode_handle(handles[rank])) {
      throw std::invalid_argument("the handle of rank " + std::to_string(rank) +
                                  " is none: exchange each rank's 128 bytes unchanged");
    }
  }
  handles_ = std::move(handles);
}

std::string Links::describe(int rank, const std::string& text) const {
  std::string address;
  if (const auto handle = handshake::decode_handle(handles_[static_cast<std::size_t>(rank)])) {
    address = " (" + format_address(handle->address) + ")";
  }
  return "rank " + std::to_string(rank) + address + ": " + text;
}

Link& Links::to(int rank) {
  Link& link = known(rank);
  if (link.wanted_since_ != 0 || link.open()) return link;
  link.wanted_since_ = now();
  if (rank > rank_) {
    connect(rank);
  } else {
    awaited_.push_back(rank);
  }
  return link;
}

std::shared_ptr<Connection> Links::connect_to(int rank) {
  try {
    return device_->connect(handles_[static_cast<std::size_t>(rank)]);
  } catch (const TransportError& error) {
    throw LinkError{Failure::kDevice, describe(rank, error.what())};
  }
}

void Links::connect(int rank) {
  for (auto& connection : known(rank).connections_) connection = connect_to(rank);
  opening_.push_back(rank);
}

/// Whether a connection that this side made is open. Throws LinkError when it failed, or when nothing came from the
/// peer for the retry time. A live device answers whatever its program does; on a busy machine the answers that open a
/// connection may together take longer.
bool Links::connected(const Connection& connection, int rank, Nanos since) const {
  const auto open = [&] {
    if (connection.failure != Failure::kNone) throw LinkError{connection.failure, describe(rank, connection.error)};
    return connection.state == Connection::State::kOpen;
  };
  if (open()) return true;
  const Nanos limit = device_->options().retry_time;
  try {
    if (now() - since < limit || now() - device_->heard_at(connection) < limit) return false;
  } catch (const TransportError& error) {
    throw LinkError{Failure::kDevice, describe(rank, error.what())};
  }
  if (open()) return true;  // what was still unread said so
  throw LinkError{Failure::kTransport,
                  describe(rank, "it does not answer a connect within retry_time_s" + descriptor_shortage())};
}

bool Links::advance() {
  bool any = false;
  for (std::size_t i = 0; i < opening_.size();) {
    if (follow(opening_[i])) {
      opening_.erase(opening_.begin() + static_cast<std::ptrdiff_t>(i));
      any = true;
    } else {
      ++i;
    }
  }
  any = std::erase_if(awaited_, [this](int rank) { return await(rank); }) > 0 || any;
  while (const auto connection = listener_->accept()) {
    auto bytes = std::make_unique<std::array<std::byte, Hello::kBytes>>();
    auto hello = new_request(Request::Kind::kReceive, connection, kHelloTag, *bytes);
    device_->submit(hello);
    incoming_.push_back({connection, std::move(hello), std::move(bytes)});
    any = true;
  }
  for (std::size_t i = 0; i < incoming_.size();) {
    if (pending(*incoming_[i].hello)) {
      ++i;
      continue;
    }
    any = true;
    if (!adopt(incoming_[i])) close_connection(incoming_[i].connection);
    incoming_.erase(incoming_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return any;
}

void Links::close_connection(const std::shared_ptr<Connection>& connection) {
  try {
    device_->close_connection(connection);
  } catch (const TransportError&) {  // NOLINT(bugprone-empty-catch): a closed device has no connections
  }
}

/// True when the link that this side makes is open.
bool Links::follow(int rank) {
  Link& link = known(rank);
  for (const auto& connection : link.connections_) {
    if (!connected(*connection, rank, link.wanted_since_)) return false;
  }
  for (std::size_t channel = 0; channel < Link::kChannels; ++channel) {
    link.hello_bytes_[channel] = encode(Hello{.size = static_cast<std::uint32_t>(size_),
                                              .rank = static_cast<std::uint32_t>(rank_),
                                              .channel = static_cast<std::uint32_t>(channel)});
    link.hellos_[channel] =
        new_request(Request::Kind::kSend, link.connections_[channel], kHelloTag, link.hello_bytes_[channel]);
    device_->submit(link.hellos_[channel]);
  }
  finish(rank);
  return true;
}

/// True when the link that the other side makes is open.
bool Links::await(int rank) {
  Link& link = known(rank);
  if (link.open()) {
    if (link.watch_) close_connection(link.watch_);
    return true;
  }
  if (link.watch_) {
    static_cast<void>(connected(*link.watch_, rank, link.watched_since_));
  } else if (now() - link.wanted_since_ >= kWatchAfter) {
    link.watched_since_ = now();
    link.watch_ = connect_to(rank);
  }
  return false;
}

/// False when the connection is none of this group: it is closed.
bool Links::adopt(Incoming& incoming) {
  if (incoming.hello->state.load(std::memory_order_acquire) != Request::State::kDone) return false;
  const auto hello = decode_hello({incoming.bytes->data(), incoming.hello->bytes});
  if (!hello || hello->size != static_cast<std::uint32_t>(size_) || hello->rank >= static_cast<std::uint32_t>(rank_) ||
      hello->channel >= Link::kChannels) {
    return false;
  }
  const int rank = static_cast<int>(hello->rank);
  Link& link = known(rank);
  if (link.connections_[hello->channel] != nullptr) return false;
  link.connections_[hello->channel] = incoming.connection;
  if (std::ranges::none_of(link.connections_, [](const auto& connection) { return connection == nullptr; })) {
    finish(rank);
  }
  return true;
}

/// Both connections are open: makes the mailboxes.
void Links::finish(int rank) {
  Link& link = known(rank);
  const std::size_t bytes = kMailShape.bytes() + kAnnounceShape.bytes();
  link.memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);  // NOLINT(modernize-avoid-c-arrays)
  try {
    link.rkey_ = device_->register_memory(link.memory_.get(), bytes);
  } catch (const TransportError& error) {
    throw LinkError{Failure::kDevice, error.what()};
  }
  const auto& connection = link.connections_[Link::kMailboxChannel];
  link.mail_.emplace(*device_, connection, kMailTag, kMailShape, link.memory_.get(), link.rkey_, 0);
  link.announcements_.emplace(*device_, connection, kAnnounceTag, kAnnounceShape,
                              link.memory_.get() + kMailShape.bytes(), link.rkey_, kMailShape.bytes());
}

void Links::tell(const std::string& why) {
  for (Link& link : links_) {
    if (!link.open()) continue;
    try {
      static_cast<void>(link.announcements().send(encode_notice(why), {}));
    } catch (const LinkError&) {  // NOLINT(bugprone-empty-catch): that rank has left
    }
  }
  // A close fails what has not left, and a notice may have to wait for the other side's receive.
  const auto all_sent = [this] {
    return std::ranges::all_of(links_, [](Link& link) { return !link.open() || link.announcements().sent(); });
  };
  try {
    device_->wait(all_sent, kTimeToTell);
  } catch (const TransportError&) {  // NOLINT(bugprone-empty-catch): another thread closed the device
  }
}

std::optional<std::string> Links::notice() {
  for (int rank = 0; rank < size_; ++rank) {
    Link& link = known(rank);
    if (!link.open()) continue;
    try {
      while (const auto message = link.announcements().front()) {
        if (const auto text = decode_notice(*message)) return describe(rank, "its group failed: " + *text);
        link.announcements().pop();
      }
    } catch (const LinkError&) {  // NOLINT(bugprone-empty-catch): it left without a notice
    }
  }
  return std::nullopt;
}

void Links::close(const std::vector<std::shared_ptr<Request>>& requests) {
  std::vector<std::shared_ptr<Connection>> open;
  for (const Link& link : links_) {
    for (const auto& connection : link.connections_) {
      if (connection) open.push_back(connection);
    }
    if (link.watch_) open.push_back(link.watch_);
  }
  for (const Incoming& incoming : incoming_) open.push_back(incoming.connection);
  const auto closed = [](const auto& connection) { return connection->state == Connection::State::kClosed; };
  try {
    device_->stop_listening(listener_);  // ranks that connect later learn that nobody is there
    for (const auto& connection : open) device_->close_connection(connection);
    device_->wait([&] { return device_->closed() || std::ranges::all_of(open, closed); }, kGracefulClose);
  } catch (const TransportError&) {  // NOLINT(bugprone-empty-catch): another thread closed the device, which ends all
  }
  std::erase_if(open, closed);
  if (device_->closed()) return;
  // Peers that do not answer. Side by side, because each may take the retry time.
  std::vector<std::thread> waiting;
  for (const auto& connection : open) {
    std::vector<std::shared_ptr<Request>> own;
    for (const auto& request : requests) {
      if (request->connection == connection && pending(*request)) own.push_back(request);
    }
    const auto close_one = [device = device_, connection, own = std::move(own)] {
      static_cast<void>(device->close_and_wait(connection, own, Device::Closing::kBothSides));
    };
    try {
      waiting.push_back(start_thread(close_one));
    } catch (const DeviceError&) {  // one after another, then
      close_one();
    }
  }
  for (std::thread& thread : waiting) thread.join();
}

}  // namespace paralet::collectives
