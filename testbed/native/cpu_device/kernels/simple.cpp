// SPDX-License-Identifier: Apache-2.0
// Protocol Simple: plain data in the slots; steps say what is ready.
#include <algorithm>

#include "combine.hpp"
#include "not_supported.hpp"
#include "transfer.hpp"

namespace paralet::cpu_device {
namespace {

// A connection, its next step, and how far the other side was when last read.
struct Lane {
  Connection connection;
  std::uint64_t step;
  std::uint64_t seen;
};

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; }

class SimpleTransfer final : public Transfer {
 public:
  SimpleTransfer(const Peers& peers, const Slicing& slicing, const Reducer& reducer)
      : slicing_(slicing), reducer_(reducer) {
    // Operations start at whole chunks, so that a slice does not wrap around.
    const std::uint64_t chunk_steps = slicing.slices_per_chunk * slicing.steps_per_slice;
    for (const Connection& connection : peers.receive) {
      const std::uint64_t step = round_up(connection.step(), chunk_steps);
      connection.post_head(step);  // the steps left out are credit for the sender
      receive_.push_back({connection, step, connection.tail()});
    }
    for (const Connection& connection : peers.send) {
      send_.push_back({connection, round_up(connection.step(), chunk_steps), connection.head()});
    }
    received_.reserve(receive_.size());
    results_.reserve(send_.size() + 1);
  }

  void begin(const Operation& operation) override {
    operation_ = operation;
    slice_ = 0;
    offset_ = 0;
    slice_elements_ = slice_elements(operation.count, slicing_, reducer_.element_bytes());
    const std::size_t longest = std::min(slice_elements_, operation.count) * reducer_.element_bytes();
    if (longest > slicing_.step_bytes * slicing_.steps_per_slice) {
      throw NotSupported{"A chunk of protocol Simple is longer than the connection's slots."};
    }
  }

  Progress advance() override {
    if (!ready()) return Progress::blocked;
    const std::size_t count = std::min(slice_elements_, operation_.count - offset_);
    move(count);
    offset_ += count;
    return ++slice_ == slicing_.slices_per_chunk ? Progress::finished : Progress::advanced;
  }

  void close() override {
    for (const Lane& lane : receive_) lane.connection.save_step(lane.step);
    for (const Lane& lane : send_) lane.connection.save_step(lane.step);
  }

 private:
  bool ready() {
    if (operation_.receive) {
      for (Lane& lane : receive_) {
        const std::uint64_t needed = lane.step + slicing_.steps_per_slice;
        if (lane.seen < needed && (lane.seen = lane.connection.tail()) < needed) return false;
      }
    }
    if (operation_.send) {
      for (Lane& lane : send_) {
        const std::uint64_t needed = lane.step + slicing_.steps_per_slice;
        // Not `seen >= needed - slots`: an unsigned difference would wrap.
        if (lane.seen + slots < needed && (lane.seen = lane.connection.head()) + slots < needed) return false;
      }
    }
    return true;
  }

  void move(std::size_t count) {
    received_.clear();
    results_.clear();
    const std::size_t offset_bytes = offset_ * reducer_.element_bytes();
    if (operation_.target != nullptr) results_.push_back(operation_.target + offset_bytes);
    if (operation_.receive) {
      for (const Lane& lane : receive_) received_.push_back(lane.connection.simple_data(lane.step));
    }
    if (operation_.send) {
      for (const Lane& lane : send_) results_.push_back(lane.connection.simple_data(lane.step));
    }
    const std::byte* own = operation_.source != nullptr ? operation_.source + offset_bytes : nullptr;
    combine(reducer_, own, received_, results_, count, operation_.post);

    if (operation_.receive) {
      for (Lane& lane : receive_) lane.connection.post_head(lane.step += slicing_.steps_per_slice);
    }
    if (operation_.send) {
      for (Lane& lane : send_) {
        lane.connection.post_bytes(lane.step, count * reducer_.element_bytes());
        lane.connection.post_tail(lane.step += slicing_.steps_per_slice);
      }
    }
  }

  const Slicing slicing_;
  const Reducer& reducer_;
  std::vector<Lane> receive_;
  std::vector<Lane> send_;
  Operation operation_;
  unsigned slice_ = 0;
  std::size_t offset_ = 0;  // elements of the chunk that are done
  std::size_t slice_elements_ = 0;
  std::vector<const std::byte*> received_;
  std::vector<std::byte*> results_;
};

}  // namespace

std::size_t slice_elements(std::size_t count, const Slicing& slicing, std::size_t element_bytes) {
  const std::size_t slice_capacity = slicing.step_bytes / element_bytes * slicing.steps_per_slice;
  const std::size_t even = (count + 16U * slicing.slices_per_chunk - 1) / (16U * slicing.slices_per_chunk) * 16;
  return std::max(even, slice_capacity / 32);
}

std::unique_ptr<Transfer> simple_transfer(const Peers& peers, const Slicing& slicing, const Reducer& reducer) {
  return std::make_unique<SimpleTransfer>(peers, slicing, reducer);
}

}  // namespace paralet::cpu_device
