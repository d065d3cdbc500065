// SPDX-License-Identifier: Apache-2.0
// libnccl-profiler-paralet.so: NCCL's profiler interface over an operation log, which a thread publishes.
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <ctime>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "nccl_profiler.h"
#include "operation_log.hpp"
#include "snapshot.hpp"

namespace paralet::profiler {
namespace {

constexpr std::chrono::milliseconds kEvery{100};
constexpr std::size_t kEndedReported = 32;

std::int64_t now_ns() noexcept {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

OperationLog::Handle number_of(void* handle) noexcept { return reinterpret_cast<std::uintptr_t>(handle); }
void* pointer_of(OperationLog::Handle handle) noexcept {
  return reinterpret_cast<void*>(handle);  // NOLINT(performance-no-int-to-ptr): NCCL passes it back, no more
}

/// The log of this process while it has communicators.
class Publisher {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    if (communicators_ == 0) thread_ = std::thread([this, session = session_] { publish(session); });
    communicators_ += 1;
  }

  void close() {
    std::thread ended;
    {
      const std::lock_guard lock(mutex_);
      if (--communicators_ != 0) return;
      session_ += 1;
      ended = std::move(thread_);
    }
    wake_.notify_all();
    ended.join();
  }

  /// Calls `act` with the log.
  template <typename Act>
  auto with(Act act) {
    const std::lock_guard lock(mutex_);
    changed_ = true;
    return act(log_);
  }

 private:
  /// Publishes until the session ends. The next one may begin before this thread sees that.
  void publish(std::uint64_t session) {
    SnapshotFile file;
    std::uint64_t generation = 0;
    std::unique_lock lock(mutex_);
    changed_ = true;
    while (session_ == session) {
      if (changed_) {
        changed_ = false;
        const std::vector<Operation> operations = log_.report(kEndedReported);
        lock.unlock();
        file.write(snapshot_of(operations, ++generation, now_ns()));
        lock.lock();
      }
      wake_.wait_for(lock, kEvery, [&] { return session_ != session; });
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::thread thread_;
  OperationLog log_;
  std::uint64_t session_ = 0;  // of the thread: from a first communicator to the end of the last
  int communicators_ = 0;
  bool changed_ = false;
};

/// Never destroyed: threads of NCCL may call until the process ends.
Publisher& publisher() {
  static auto* const the = new Publisher;
  return *the;
}

using Context = std::shared_ptr<const Communicator>;

std::optional<Wait> wait_of(ncclProfilerEventState_v5_t state) noexcept {
  switch (state) {
    case ncclProfilerProxyStepSendGPUWait:
    case ncclProfilerProxyStepRecvFlushWait:
    case ncclProfilerProxyStepRecvGPUWait:
      return Wait::kGpu;
    case ncclProfilerProxyStepSendPeerWait_v4:
      return Wait::kPeer;
    case ncclProfilerProxyStepSendWait:
    case ncclProfilerProxyStepRecvWait:
      return Wait::kNetwork;
    default:
      return std::nullopt;
  }
}

OperationLog::Handle start(OperationLog& log, const Context& communicator, const ncclProfilerEventDescr_v5_t& event) {
  const OperationLog::Handle above = number_of(event.parentObj);
  switch (event.type) {
    case ncclProfileColl:
      return log.enqueue(communicator,
                         {.function = event.coll.func,
                          .type = event.coll.datatype,
                          .algorithm = event.coll.algo,
                          .protocol = event.coll.proto,
                          .sequence = event.coll.seqNumber,
                          .count = event.coll.count},
                         now_ns());
    case ncclProfileP2p:
      return log.enqueue(
          communicator,
          {.function = event.p2p.func, .type = event.p2p.datatype, .count = event.p2p.count, .peer = event.p2p.peer},
          now_ns());
    case ncclProfileProxyOp:
      if (event.proxyOp.pid != ::getpid()) return 0;  // PXN: the handle is another process's
      return log.begin(above,
                       {.channel = event.proxyOp.channelId,
                        .peer = event.proxyOp.peer,
                        .steps = event.proxyOp.nSteps,
                        .send = event.proxyOp.isSend != 0},
                       now_ns());
    case ncclProfileProxyStep:
      return log.begin_step(above, event.proxyStep.step, now_ns());
    case ncclProfileNetPlugin:
      if (event.netPlugin.id != PARALET_PROFILER_ID || event.netPlugin.data == nullptr) return 0;
      return log.begin_message(above, *static_cast<const paraletProfilerEvent_v1_t*>(event.netPlugin.data));
    default:
      return 0;
  }
}

// NCCL's profiler must not make a job fail: every function reports success, but for the beginning.

ncclResult_t init(void** context, std::uint64_t id, int* mask, const char* name, int /*nodes*/, int ranks, int rank,
                  ncclDebugLogger_t /*log*/) noexcept try {
  auto communicator = std::make_unique<Context>(std::make_shared<Communicator>(
      Communicator{.name = name == nullptr ? "" : name, .hash = id, .ranks = ranks, .rank = rank}));
  publisher().open();
  *context = communicator.release();
  *mask = ncclProfileColl | ncclProfileP2p | ncclProfileProxyOp | ncclProfileProxyStep | ncclProfileNetPlugin;
  return ncclSuccess;
} catch (const std::exception&) {
  return ncclSystemError;
}

ncclResult_t start_event(void* context, void** handle, ncclProfilerEventDescr_v5_t* event) noexcept try {
  *handle = nullptr;
  if (context == nullptr) return ncclSuccess;
  *handle = pointer_of(
      publisher().with([&](OperationLog& log) { return start(log, *static_cast<Context*>(context), *event); }));
  return ncclSuccess;
} catch (const std::exception&) {
  return ncclSuccess;
}

ncclResult_t stop_event(void* handle) noexcept {
  if (handle != nullptr) publisher().with([&](OperationLog& log) { log.stop(number_of(handle), now_ns()); });
  return ncclSuccess;
}

ncclResult_t record_state(void* handle, ncclProfilerEventState_v5_t state,
                          ncclProfilerEventStateArgs_v5_t* arguments) noexcept {
  if (handle == nullptr) return ncclSuccess;
  if (state == ncclProfilerNetPluginUpdate) {
    if (arguments == nullptr || arguments->netPlugin.data == nullptr) return ncclSuccess;
    const auto& data = *static_cast<const paraletProfilerEvent_v1_t*>(arguments->netPlugin.data);
    publisher().with([&](OperationLog& log) { log.tell(number_of(handle), data); });
  } else if (const std::optional<Wait> on = wait_of(state)) {
    publisher().with([&](OperationLog& log) { log.waits(number_of(handle), *on, now_ns()); });
  }
  return ncclSuccess;
}

ncclResult_t finalize(void* context) noexcept {
  if (context == nullptr) return ncclSuccess;
  publisher().close();
  delete static_cast<Context*>(context);  // NOLINT(cppcoreguidelines-owning-memory): NCCL has kept it
  return ncclSuccess;
}

}  // namespace
}  // namespace paralet::profiler

extern "C" __attribute__((visibility("default"))) const ncclProfiler_v5_t ncclProfiler_v5;
const ncclProfiler_v5_t ncclProfiler_v5 = {.name = "paralet",
                                           .init = paralet::profiler::init,
                                           .startEvent = paralet::profiler::start_event,
                                           .stopEvent = paralet::profiler::stop_event,
                                           .recordEventState = paralet::profiler::record_state,
                                           .finalize = paralet::profiler::finalize};
