// SPDX-License-Identifier: Apache-2.0
// The application of the victim: receives, sends, and the memory that they use.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/device.hpp"
#include "guarded.hpp"
#include "script.hpp"

namespace paralet::fuzz {

inline std::shared_ptr<Request> request(const std::shared_ptr<Connection>& connection, Request::Kind kind,
                                        std::span<std::byte> memory, std::uint32_t tag = 0) {
  auto out = std::make_shared<Request>();
  out->kind = kind;
  out->connection = connection;
  out->data = memory.data();
  out->length = memory.size();
  out->tag = tag;
  return out;
}

class Application {
  using State = Request::State;

 public:
  explicit Application(Device& victim) : victim_(victim) {}

  std::vector<std::shared_ptr<Connection>> connections;

  void start_receive(Script& script) {
    const std::uint8_t size = script.u8();
    const std::uint8_t tag = script.u8();
    if (connections.empty() || receives_.size() == kSlots) return;
    std::size_t offset = 0;
    while (std::ranges::any_of(receives_, [&](const Receive& r) { return r.offset == offset; })) offset += kSlotStride;
    const std::span memory(memory_.open(offset, size), size);
    receives_.push_back({request(pick(tag), Request::Kind::kReceive, memory, tag % 3U), offset});
    victim_.submit(receives_.back().request);
  }

  void start_send(Script& script) {
    const std::size_t size = script.u16() % source_.size();
    const std::uint8_t tag = script.u8();
    if (connections.empty()) return;
    sends_.push_back(request(pick(tag), Request::Kind::kSend, {source_.data(), size}, tag % 3U));
    victim_.submit(sends_.back());
  }

  const std::shared_ptr<Connection>& pick(std::uint8_t by) const { return connections[by / 3 % connections.size()]; }

  void close_one(Script& script) {
    const std::uint8_t which = script.u8();
    if (!connections.empty()) victim_.close_connection(pick(which));
  }

  /// Frees finished sends, as an application may, and closes the memory of finished receives.
  void settle() {
    std::erase_if(sends_, [](const auto& send) { return send->state != State::kPending; });
    std::erase_if(receives_, [&](const Receive& receive) {
      const State state = receive.request->state;
      if (state == State::kPending) return false;
      if (state == State::kDone) require(receive.request->bytes <= receive.request->length);
      memory_.close(receive.offset, receive.request->length);
      return true;
    });
  }

  [[nodiscard]] bool idle() const { return sends_.empty() && receives_.empty(); }

 private:
  struct Receive {
    std::shared_ptr<Request> request;
    std::size_t offset;
  };

  static constexpr std::size_t kSlots = 16;
  static constexpr std::size_t kSlotStride = 512;

  Device& victim_;
  Guarded memory_{(kSlots + 1) * kSlotStride};
  std::vector<std::byte> source_ = std::vector<std::byte>(5000, std::byte{0x77});
  std::vector<Receive> receives_;
  std::vector<std::shared_ptr<Request>> sends_;
};

}  // namespace paralet::fuzz
