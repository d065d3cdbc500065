// SPDX-License-Identifier: Apache-2.0
#include "collectives/execution.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/errors.hpp"
#include "collectives/operation.hpp"

namespace paralet::collectives {
namespace {

constexpr std::size_t kWindow = 8;  // transfers of bulk data in each direction of a stream

bool by_mail(const Action& action) { return action.bytes <= Link::kMailBytes; }

/// "all_reduce of float32, sum" with its number.
std::string name_of(const Identity& identity) {
  std::string out = to_string(static_cast<Kind>(identity.kind));
  out += " (operation " + std::to_string(identity.sequence);
  if (has_reduction(static_cast<Kind>(identity.kind))) {
    const char* type = to_string(static_cast<DataType>(identity.type));
    const char* op = to_string(static_cast<ReduceOp>(identity.op));
    out += std::string(", ") + (type != nullptr ? type : "?") + ", " + (op != nullptr ? op : "?");
  }
  if (has_root(static_cast<Kind>(identity.kind))) out += ", root " + std::to_string(identity.root);
  return out + ")";
}

}  // namespace

// -- scratch memory ----------------------------------------------------------------------------------------------

Scratch::~Scratch() {
  if (rkey_ == 0 || device_->closed()) return;
  try {
    device_->deregister_memory(rkey_);
  } catch (const TransportError&) {  // NOLINT(bugprone-empty-catch): another thread closed the device, which ends all
  }
}

Scratch::Slot Scratch::take() {
  if (!memory_) {
    memory_ = std::make_unique_for_overwrite<std::byte[]>(kSlots * kSlotBytes);  // NOLINT(modernize-avoid-c-arrays)
    try {
      rkey_ = device_->register_memory(memory_.get(), kSlots * kSlotBytes);
    } catch (const TransportError& error) {
      throw LinkError{Failure::kDevice, error.what()};
    }
    for (std::size_t i = 0; i < kSlots; ++i) free_.push_back({memory_.get() + i * kSlotBytes, rkey_, i * kSlotBytes});
  }
  if (free_.empty()) return {};
  const Slot slot = free_.back();
  free_.pop_back();
  return slot;
}

// -- programs ----------------------------------------------------------------------------------------------------

Execution::Execution(Identity identity, Program program, Elements elements, unsigned ranks)
    : identity_(identity),
      program_(std::move(program)),
      elements_(elements),
      ranks_(ranks),
      done_(program_.size(), false) {
  for (std::uint32_t index = 0; index < program_.size(); ++index) {
    const Action& action = program_[index];
    if (action.kind == Action::Kind::kCopy) {
      local_.push_back(index);
      continue;
    }
    auto stream = std::ranges::find(streams_, action.peer, &Stream::peer);
    if (stream == streams_.end()) {
      streams_.push_back({.peer = action.peer});
      stream = streams_.end() - 1;
    }
    const bool sends = action.kind == Action::Kind::kSend;
    (sends ? stream->sends : stream->receives).push_back(index);
    (sends ? stream->send_bytes : stream->receive_bytes) += action.bytes;
  }
}

bool Execution::ready(const Action& action) const {
  return std::ranges::all_of(action.after, [this](std::uint32_t i) { return i == Action::kNone || done_[i]; });
}

void Execution::set_done(std::uint32_t index) {
  done_[index] = true;
  ++done_count_;
}

bool Execution::advance(Device& device, Links& links, Scratch& scratch) {
  bool any = false;
  for (bool again = true; again;) {  // what arrives may let other streams go on
    again = run_local();
    for (Stream& stream : streams_) {
      try {
        Link& link = links.to(stream.peer);
        if (!link.open()) continue;
        // Sends first: peers wait for them.
        again = finish_receives(stream, link, scratch) || again;
        again = send(stream, device, link) || again;
        again = finish_sends(stream) || again;
        again = post_receives(stream, device, link, scratch) || again;
      } catch (const LinkError& error) {
        throw LinkError{error.failure, links.describe(stream.peer, error.text)};
      }
    }
    any = any || again;
  }
  return any;
}

std::shared_ptr<Request> Execution::request(Request::Kind kind, const Link& link, std::byte* data,
                                            std::uint64_t bytes) {
  std::shared_ptr<Request> out;
  if (spare_.empty()) {
    out = std::make_shared<Request>();
  } else {
    out = std::move(spare_.back());
    spare_.pop_back();
  }
  out->kind = kind;
  out->connection = link.bulk();
  out->data = data;
  out->length = bytes;
  out->tag = identity_.sequence & kSequenceTags;
  out->rkey = 0;
  out->region_offset = 0;
  return out;
}

bool Execution::send(Stream& stream, Device& device, Link& link) {
  bool any = false;
  while (stream.next_send < stream.sends.size()) {
    const std::uint32_t index = stream.sends[stream.next_send];
    const Action& action = program_[index];
    if (!ready(action)) break;
    const bool mail = by_mail(action);
    if (mail || !stream.header_sent) {
      const auto header = encode(Header{.identity = identity_, .stream_bytes = stream.send_bytes});
      const std::uint64_t bytes = mail ? action.bytes : 0;
      if (!link.mail().send(header, std::span<const std::byte>(action.data, bytes))) break;
      stream.header_sent = any = true;
    }
    if (mail) {
      set_done(index);
    } else {
      if (stream.sending.size() == kWindow) break;
      const auto sent = request(Request::Kind::kSend, link, action.data, action.bytes);
      stream.sending.push_back({.action = index, .request = sent, .slot = {}});
      device.submit(sent);
      any = true;
    }
    ++stream.next_send;
  }
  return any;
}

bool Execution::finish_sends(Stream& stream) {
  for (const Transfer& transfer : stream.sending) {
    if (transfer.request->state == Request::State::kFailed) {
      throw LinkError{transfer.request->failure, transfer.request->error};
    }
  }
  // It throws nothing: std::erase_if would leave elements behind that it has moved from.
  const auto finished = [this](Transfer& transfer) {
    if (transfer.request->state != Request::State::kDone) return false;
    set_done(transfer.action);
    spare_.push_back(std::move(transfer.request));
    return true;
  };
  return std::erase_if(stream.sending, finished) > 0;
}

bool Execution::post_receives(Stream& stream, Device& device, Link& link, Scratch& scratch) {
  bool any = false;
  while (stream.next_receive < stream.receives.size() && stream.receiving.size() < kWindow) {
    const std::uint32_t index = stream.receives[stream.next_receive];
    const Action& action = program_[index];
    Transfer transfer{.action = index, .request = nullptr, .slot = {}};
    if (!by_mail(action)) {
      if (action.kind == Action::Kind::kReduce) {
        transfer.slot = scratch.take();
        if (transfer.slot.data == nullptr) break;
        transfer.request = request(Request::Kind::kReceive, link, transfer.slot.data, action.bytes);
        transfer.request->rkey = transfer.slot.rkey;
        transfer.request->region_offset = transfer.slot.offset;
      } else {
        if (!ready(action)) break;
        transfer.request = request(Request::Kind::kReceive, link, action.data, action.bytes);
      }
      device.submit(transfer.request);
      any = true;
    }
    stream.receiving.push_back(std::move(transfer));
    ++stream.next_receive;
  }
  return any;
}

bool Execution::finish_receives(Stream& stream, Link& link, Scratch& scratch) {
  bool any = false;
  // A stream without receives gets no mail of this operation.
  while (!stream.receiving.empty()) {
    Transfer& transfer = stream.receiving.front();
    if (!stream.header_seen || transfer.request == nullptr) {
      if (!finish_mail(stream, link)) break;
      any = true;
      continue;
    }
    if (pending(*transfer.request)) break;
    const Action& action = program_[transfer.action];
    if (transfer.request->state == Request::State::kFailed) {
      throw LinkError{transfer.request->failure, transfer.request->error};
    }
    if (transfer.request->bytes != action.bytes) {
      throw LinkError{Failure::kTransport, "it sent " + std::to_string(transfer.request->bytes) + " bytes instead of " +
                                               std::to_string(action.bytes) + " in " + name_of(identity_)};
    }
    if (action.kind == Action::Kind::kReduce) {
      if (!ready(action)) break;
      apply(transfer.action, transfer.slot.data);
      scratch.give_back(transfer.slot);
    } else {
      set_done(transfer.action);
    }
    spare_.push_back(std::move(transfer.request));
    stream.receiving.pop_front();
    any = true;
  }
  return any;
}

/// Takes the oldest message of the mailbox: the data of the next receive, or only the stream's header.
bool Execution::finish_mail(Stream& stream, Link& link) {
  const auto message = link.mail().front();
  if (!message) return false;
  const Transfer& transfer = stream.receiving.front();
  const Action& action = program_[transfer.action];
  const bool data = transfer.request == nullptr;
  check(stream, *message);
  if (message->size() - Header::kBytes != (data ? action.bytes : 0)) {
    throw LinkError{Failure::kTransport, "it sent a message of another size in " + name_of(identity_)};
  }
  if (data) {
    if (!ready(action)) return false;
    apply(transfer.action, message->data() + Header::kBytes);
    stream.receiving.pop_front();
  }
  link.mail().pop();
  stream.header_seen = true;
  return true;
}

void Execution::check(const Stream& stream, std::span<const std::byte> message) const {
  const auto header = decode_header(message);
  if (!header) throw LinkError{Failure::kTransport, "it sent a message that is none of a collective"};
  if (header->identity != identity_) {
    throw LinkError{Failure::kTransport, "it runs " + name_of(header->identity) + ", and this rank " +
                                             name_of(identity_) +
                                             ": every rank must issue the same operations in the same order"};
  }
  if (header->stream_bytes != stream.receive_bytes) {
    throw LinkError{Failure::kTransport, "it sends " + std::to_string(header->stream_bytes) + " bytes in " +
                                             name_of(identity_) + ", and this rank expects " +
                                             std::to_string(stream.receive_bytes) +
                                             ": the sizes must be the same on every rank"};
  }
}

/// The message of a receive or a reduction has come.
void Execution::apply(std::uint32_t index, const std::byte* received) {
  const Action& action = program_[index];
  if (action.kind == Action::Kind::kReduce) {
    const std::size_t count = action.bytes / elements_.bytes;
    const std::byte* const first = action.received_first ? received : action.local;
    const std::byte* const second = action.received_first ? action.local : received;
    elements_.reduction.combine(action.data, first, second, count);
    if (action.last && elements_.reduction.divide != nullptr) {
      elements_.reduction.divide(action.data, count, ranks_);
    }
  } else if (action.bytes > 0) {
    std::memcpy(action.data, received, action.bytes);
  }
  set_done(index);
}

bool Execution::run_local() {
  bool any = false;
  while (!local_.empty() && ready(program_[local_.front()])) {
    const Action& action = program_[local_.front()];
    if (action.bytes > 0) std::memmove(action.data, action.local, action.bytes);
    set_done(local_.front());
    local_.pop_front();
    any = true;
  }
  return any;
}

std::vector<std::shared_ptr<Request>> Execution::requests() const {
  std::vector<std::shared_ptr<Request>> out;
  for (const Stream& stream : streams_) {
    for (const Transfer& transfer : stream.sending) out.push_back(transfer.request);
    for (const Transfer& transfer : stream.receiving) {
      if (transfer.request != nullptr) out.push_back(transfer.request);
    }
  }
  return out;
}

}  // namespace paralet::collectives
