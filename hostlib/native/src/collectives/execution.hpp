// SPDX-License-Identifier: Apache-2.0
// Runs a rank's program over its links. Not thread-safe: the group's executor uses it.
//
// Messages of up to Link::kMailBytes travel through mailboxes, longer ones go from the sender's memory into the
// receiver's. What is to be reduced goes into scratch memory first. The first message to each peer carries a header, by
// which the receiver checks that both run the same operation on the same sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "collectives/header.hpp"
#include "collectives/links.hpp"
#include "collectives/reduction.hpp"
#include "collectives/schedule.hpp"
#include "engine/device.hpp"

namespace paralet::collectives {

/// Memory for messages that are to be reduced: slots of equal size, registered once.
class Scratch {
 public:
  explicit Scratch(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch();

  static constexpr std::size_t kSlots = 8;
  static constexpr std::uint64_t kSlotBytes = std::uint64_t{512} * 1024;
  struct Slot {
    std::byte* data = nullptr;
    std::uint32_t rkey = 0;
    std::uint64_t offset = 0;
  };
  /// The slot that was used last, as it is still in the processor's cache; data is nullptr when none is free. Throws
  /// LinkError.
  Slot take();
  void give_back(Slot slot) { free_.push_back(slot); }

 private:
  std::shared_ptr<Device> device_;
  std::unique_ptr<std::byte[]> memory_;  // NOLINT(modernize-avoid-c-arrays): not initialised
  std::uint32_t rkey_ = 0;
  std::vector<Slot> free_;
};

/// What an operation does with elements.
struct Elements {
  Reduction reduction;
  std::size_t bytes = 1;  ///< of an element
};

class Execution {
 public:
  Execution(Identity identity, Program program, Elements elements, unsigned ranks);

  /// Starts and finishes what it can. True when anything changed. Throws LinkError.
  bool advance(Device& device, Links& links, Scratch& scratch);
  [[nodiscard]] bool finished() const { return done_count_ == program_.size(); }
  /// Those that use the caller's memory.
  [[nodiscard]] std::vector<std::shared_ptr<Request>> requests() const;
  [[nodiscard]] const Identity& identity() const { return identity_; }
  void set_sequence(std::uint32_t sequence) { identity_.sequence = sequence; }

 private:
  struct Transfer {
    std::uint32_t action = 0;
    std::shared_ptr<Request> request;  ///< nullptr: through the mailbox
    Scratch::Slot slot;
  };
  /// All messages to and from one peer.
  struct Stream {
    int peer = 0;
    std::vector<std::uint32_t> sends;  ///< actions
    std::vector<std::uint32_t> receives;
    std::uint64_t send_bytes = 0;
    std::uint64_t receive_bytes = 0;
    std::size_t next_send = 0;
    std::size_t next_receive = 0;
    bool header_sent = false;
    bool header_seen = false;
    std::vector<Transfer> sending;
    std::deque<Transfer> receiving;  ///< in the order of the program
  };

  [[nodiscard]] bool ready(const Action& action) const;
  void set_done(std::uint32_t index);
  bool send(Stream& stream, Device& device, Link& link);
  bool finish_sends(Stream& stream);
  bool post_receives(Stream& stream, Device& device, Link& link, Scratch& scratch);
  bool finish_receives(Stream& stream, Link& link, Scratch& scratch);
  bool finish_mail(Stream& stream, Link& link);
  void check(const Stream& stream, std::span<const std::byte> message) const;
  void apply(std::uint32_t index, const std::byte* received);
  bool run_local();
  std::shared_ptr<Request> request(Request::Kind kind, const Link& link, std::byte* data, std::uint64_t bytes);

  Identity identity_;
  Program program_;
  Elements elements_;
  unsigned ranks_;
  std::vector<bool> done_;
  std::size_t done_count_ = 0;
  std::vector<Stream> streams_;
  std::deque<std::uint32_t> local_;  ///< actions without a message
  std::vector<std::shared_ptr<Request>> spare_;
};

}  // namespace paralet::collectives
