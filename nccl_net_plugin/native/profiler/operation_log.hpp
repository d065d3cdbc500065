// SPDX-License-Identifier: Apache-2.0
// What NCCL's profiler events tell about the latest operations of this process: collectives, sends and receives.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "paralet_profiler.h"

namespace paralet::profiler {

/// A communicator of this process.
struct Communicator {
  std::string name;        ///< what the application called it; may be empty
  std::uint64_t hash = 0;  ///< NCCL's: the same in all ranks
  int ranks = 0;
  int rank = 0;
};

/// What NCCL says when an operation is enqueued. Names are NCCL's.
struct Enqueued {
  const char* function = "";
  const char* type = "";
  const char* algorithm = "";
  const char* protocol = "";
  std::uint64_t sequence = 0;  ///< counts the operations with this function in the communicator; 0 between two ranks
  std::uint64_t count = 0;     ///< elements
  int peer = -1;               ///< of a send or receive
};

/// One direction of one channel in an operation: the steps towards or from a peer.
struct Transfers {
  int channel = 0;
  int peer = 0;  ///< a rank of the communicator
  int steps = 0;
  bool send = false;
};

/// What a step waits for.
enum class Wait : std::uint8_t {
  kNothing,  ///< the step is not under way
  kGpu,      ///< this rank's kernel: data to send, or room for what came
  kPeer,     ///< a send: the peer has posted no receive
  kNetwork,  ///< data of a send are not acknowledged, or data of a receive have not come
};

/// A step that is under way, the oldest of its direction and channel.
struct Waiting {
  Transfers transfers;
  int step = 0;
  Wait on = Wait::kNothing;
  std::int64_t since_ns = 0;
};

/// The flowlet that took longest.
struct SlowestFlowlet {
  std::int64_t duration_ns = 0;
  std::uint32_t lane = 0;
  std::uint32_t peer = 0;  ///< IPv4 address, host byte order
  std::uint16_t port = 0;  ///< UDP source port
};

/// An operation as far as it is known. Times are those of CLOCK_MONOTONIC in ns; 0: not yet.
struct Operation {
  std::shared_ptr<const Communicator> communicator;
  std::string function;
  std::string type;
  std::string algorithm;
  std::string protocol;
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;
  std::uint64_t number = 0;  ///< of the operation in this process, from 1
  int peer = -1;
  std::int64_t enqueued_ns = 0;
  std::int64_t began_ns = 0;  ///< its first transfer on the network
  std::int64_t ended_ns = 0;  ///< its last transfer so far; 0 while one is under way
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
  std::uint64_t flowlets = 0;    ///< acknowledged
  std::int64_t flowlets_ns = 0;  ///< their durations together
  SlowestFlowlet slowest;
  std::vector<Waiting> waits;  ///< in a report only: those that have waited longest
};

/// Keeps the latest operations in fixed memory: no call allocates more than the names. Not synchronized.
///
/// Handles are numbers, not addresses. A handle whose event is forgotten, or which another process made, is ignored.
class OperationLog {
 public:
  using Handle = std::uint64_t;  ///< 0: none
  static constexpr std::size_t kOperations = 512;
  static constexpr std::size_t kTransfers = 1024;
  static constexpr std::size_t kWaitsReported = 8;

  /// An operation of the communicator is enqueued. 0 while too many are under way.
  Handle enqueue(const std::shared_ptr<const Communicator>& communicator, const Enqueued& what, std::int64_t now_ns);
  /// Transfers of an operation begin.
  Handle begin(Handle operation, const Transfers& transfers, std::int64_t now_ns);
  /// A step of transfers begins.
  Handle begin_step(Handle transfers, int step, std::int64_t now_ns);
  /// A step waits for something else now.
  void waits(Handle step, Wait on, std::int64_t now_ns);
  /// A message or flowlet of a step begins, as the net plugin tells. A send that paralet has taken and of which no
  /// flowlet has left waits for the peer's receive.
  Handle begin_message(Handle step, const paraletProfilerEvent_v1_t& data);
  /// The net plugin tells of a message or flowlet.
  void tell(Handle message, const paraletProfilerEvent_v1_t& data);
  /// The event with this handle stops.
  void stop(Handle handle, std::int64_t now_ns);

  /// The operations under way, and the latest `most` others that used the network, in the order of `number`.
  [[nodiscard]] std::vector<Operation> report(std::size_t most) const;

 private:
  static constexpr std::size_t kSteps = 8;  // NCCL_STEPS: steps under way of one direction and channel

  struct Step {
    int number = 0;
    Wait on = Wait::kNothing;
    std::int64_t since_ns = 0;
    bool begun = false;   // paralet carries it
    bool posted = false;  // a flowlet has left
  };
  struct Place {
    Transfers transfers;
    Handle operation = 0;
    std::uint32_t generation = 0;
    bool open = false;
    std::array<Step, kSteps> steps;
  };
  struct Slot {
    Operation operation;
    std::uint32_t generation = 0;
    std::uint32_t open = 0;  // transfers under way
  };

  Slot* slot_of(Handle handle);
  Place* place_of(Handle handle);

  std::vector<Slot> slots_ = std::vector<Slot>(kOperations);
  std::vector<Place> places_ = std::vector<Place>(kTransfers);
  std::size_t next_slot_ = 0;
  std::size_t next_place_ = 0;
  std::uint64_t numbered_ = 0;
};

}  // namespace paralet::profiler
