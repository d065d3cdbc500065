// SPDX-License-Identifier: Apache-2.0
#include "collectives/group.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/errors.hpp"
#include "base/limits.hpp"

namespace paralet::collectives {
namespace {

constexpr Nanos kSpin = 50 * kMicrosecond;  // an executor without work looks for it for so long before it sleeps
constexpr Nanos kCrowdedYield = 200 * kMicrosecond;  // a yield that takes so long has let other programs run
constexpr Nanos kCrowdedTime = 20 * kMillisecond;    // for this time spinning would only cost time slices
constexpr Nanos kLongestSleep = 1 * kSecond;
constexpr Nanos kLinkSleep = 50 * kMillisecond;  // while links are made
constexpr std::uint64_t kTemporaryBytes = 8 * Scratch::kSlotBytes;
static_assert(Limits{}.most_chunk <= Scratch::kSlotBytes && kTemporaryBytes >= 4 * Limits{}.most_chunk);
static_assert(Limits{}.short_bytes <= Link::kMailBytes);

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

Nanos deadline_of(const IssueOptions& options) {
  if (!options.timeout) return kNever;
  const Nanos t = now();
  return *options.timeout < kNever - t ? t + *options.timeout : kNever;
}

Elements elements_of(DataType type, ReduceOp op) {
  const auto found = reduction(type, op);
  if (!found) {
    throw std::invalid_argument(std::string("the operator ") + to_string(op) + " is not defined for " +
                                to_string(type));
  }
  return {*found, element_bytes(type)};
}

std::uint64_t bytes_of(std::uint64_t count, DataType type) {
  const std::size_t element = element_bytes(type);
  if (count > UINT64_MAX / element) throw std::invalid_argument("count is too large");
  return count * element;
}

}  // namespace

Group::Group(std::shared_ptr<Device> device, int rank, int size)
    : device_(std::move(device)), place_{rank, size}, scratch_(device_), point_to_point_(place_) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw std::invalid_argument("rank " + std::to_string(rank) + " of a group of " + std::to_string(size) +
                                " does not exist: ranks are 0 to size - 1");
  }
  links_ = std::make_unique<Links>(device_, rank, size);
  handle_ = links_->handle();
  thread_ = start_thread([this] { run(); });
}

Group::~Group() { close(); }

void Group::check_owner() const {
  if (inherited()) throw DeviceError("the group is the parent process's: a forked child opens its own");
}

void Group::set_handles(std::vector<std::array<std::byte, handshake::kHandleBytes>> handles) {
  check_owner();
  if (handles.size() != static_cast<std::size_t>(place_.size)) {
    throw std::invalid_argument("exchange must return the handles of all " + std::to_string(place_.size) +
                                " ranks, not of " + std::to_string(handles.size()));
  }
  const MutexLock lock(executor_);
  links_->set_handles(std::move(handles));
}

// -- issuing -----------------------------------------------------------------------------------------------------

void Group::check_rank(int rank, const char* what) const {
  if (rank >= 0 && rank < place_.size) return;
  throw std::invalid_argument(std::string(what) + " must be a rank, 0 to " + std::to_string(place_.size - 1) +
                              ", not " + std::to_string(rank));
}

/// Operations run one after another, so one piece of memory serves all.
Temporary Group::temporary() {
  check_owner();
  const MutexLock lock(state_);
  if (!temporary_) {
    temporary_ = std::make_unique_for_overwrite<std::byte[]>(kTemporaryBytes);  // NOLINT(modernize-avoid-c-arrays)
  }
  return {temporary_.get(), kTemporaryBytes};
}

Group::Handle Group::issue(Kind kind, Job job, const IssueOptions& options) {
  check_owner();
  auto operation = std::make_shared<Operation>();
  operation->id = next_id();
  operation->kind = kind;
  job.operation = operation;
  job.deadline = deadline_of(options);
  job.notify = options.notify;
  ++unfinished_;
  bool failed = false;
  {
    const MutexLock lock(state_);
    if (job.execution) job.execution->set_sequence(next_sequence_++);
    failed = failure_ != Failure::kNone;
    if (!failed) {
      submitted_.push_back(std::move(job));
      news_ = true;
    }
  }
  if (failed) {
    complete(job, Operation::State::kFailed);
  } else if (driving_) {
    completion_signal().notify();
  } else if (!options.awaited) {
    hand_over();
  }
  return operation;
}

Group::Handle Group::collective(Kind kind, int root, DataType type, ReduceOp op, Elements elements, Program program,
                                const IssueOptions& options) {
  const Identity identity{.kind = static_cast<std::uint8_t>(kind),
                          .type = static_cast<std::uint8_t>(type),
                          .op = static_cast<std::uint8_t>(op),
                          .root = static_cast<std::uint32_t>(root)};
  Job job;
  job.execution =
      std::make_unique<Execution>(identity, std::move(program), elements, static_cast<unsigned>(place_.size));
  return issue(kind, std::move(job), options);
}

Group::Handle Group::all_reduce(std::byte* source, std::byte* target, std::uint64_t count, DataType type, ReduceOp op,
                                const IssueOptions& options) {
  const Elements elements = elements_of(type, op);
  return collective(Kind::kAllReduce, 0, type, op, elements,
                    collectives::all_reduce(place_, source, target, bytes_of(count, type), elements.bytes, limits_),
                    options);
}

Group::Handle Group::reduce(std::byte* source, std::byte* target, std::uint64_t count, DataType type, ReduceOp op,
                            int root, const IssueOptions& options) {
  check_rank(root, "root");
  const Elements elements = elements_of(type, op);
  return collective(
      Kind::kReduce, root, type, op, elements,
      collectives::reduce(place_, root, source, target, bytes_of(count, type), elements.bytes, temporary(), limits_),
      options);
}

Group::Handle Group::broadcast(std::byte* data, std::uint64_t bytes, int root, const IssueOptions& options) {
  check_rank(root, "root");
  return collective(Kind::kBroadcast, root, {}, {}, {}, collectives::broadcast(place_, root, data, bytes, limits_),
                    options);
}

Group::Handle Group::all_gather(std::byte* source, const Blocks& target, const IssueOptions& options) {
  return collective(Kind::kAllGather, 0, {}, {}, {}, collectives::all_gather(place_, source, target, limits_), options);
}

Group::Handle Group::reduce_scatter(const Blocks& source, std::byte* target, DataType type, ReduceOp op,
                                    const IssueOptions& options) {
  const Elements elements = elements_of(type, op);
  return collective(Kind::kReduceScatter, 0, type, op, elements,
                    collectives::reduce_scatter(place_, source, target, elements.bytes, temporary(), limits_), options);
}

Group::Handle Group::all_to_all(const Blocks& source, const Blocks& target, const IssueOptions& options) {
  const auto own = static_cast<std::size_t>(place_.rank);
  if (source[own].bytes != target[own].bytes) {
    throw std::invalid_argument("this rank sends " + std::to_string(source[own].bytes) +
                                " bytes to itself and expects " + std::to_string(target[own].bytes));
  }
  return collective(Kind::kAllToAll, 0, {}, {}, {}, collectives::all_to_all(place_, source, target), options);
}

Group::Handle Group::gather(Block source, const Blocks& target, int root, const IssueOptions& options) {
  check_rank(root, "root");
  return collective(Kind::kGather, root, {}, {}, {}, collectives::gather(place_, root, source, target), options);
}

Group::Handle Group::scatter(const Blocks& source, Block target, int root, const IssueOptions& options) {
  check_rank(root, "root");
  return collective(Kind::kScatter, root, {}, {}, {}, collectives::scatter(place_, root, source, target), options);
}

Group::Handle Group::barrier(const IssueOptions& options) {
  return collective(Kind::kBarrier, 0, {}, {}, {}, collectives::barrier(place_), options);
}

Group::Handle Group::message(Kind kind, const Message& message, const IssueOptions& options) {
  if (message.peer) {
    check_rank(*message.peer, "peer");
    if (*message.peer == place_.rank) throw std::invalid_argument("peer must be another rank");
  }
  if (message.tag >= kPointToPointTag) throw std::invalid_argument("tag must be 0 to 2147483647");
  Job job;
  job.message = message;
  return issue(kind, std::move(job), options);
}

Group::Handle Group::send(std::byte* data, std::uint64_t bytes, int peer, std::uint32_t tag,
                          const IssueOptions& options) {
  return message(Kind::kSend, {.data = data, .bytes = bytes, .peer = peer, .tag = tag, .request = nullptr}, options);
}

Group::Handle Group::receive(std::byte* data, std::uint64_t bytes, std::optional<int> peer, std::uint32_t tag,
                             const IssueOptions& options) {
  return message(Kind::kReceive, {.data = data, .bytes = bytes, .peer = peer, .tag = tag, .request = nullptr}, options);
}

// -- the executor ------------------------------------------------------------------------------------------------

/// True when something changed.
bool Group::advance() {
  take_submitted();
  bool any = false;
  try {
    any = links_->advance();
    while (!collectives_.empty()) {
      Job& job = collectives_.front();
      any = job.execution->advance(*device_, *links_, scratch_) || any;
      if (!job.execution->finished()) break;
      complete(job, Operation::State::kDone);
      collectives_.pop_front();
      any = true;
    }
    if (!messages_.empty()) any = advance_messages() || any;
  } catch (const LinkError& error) {
    const auto notice = error.failure == Failure::kClosed ? links_->notice() : std::nullopt;
    fail(error.failure, notice.value_or(error.text));
    any = true;
  }
  return any;
}

void Group::take_submitted() {
  if (!news_.load(std::memory_order_relaxed)) return;
  const MutexLock lock(state_);
  news_ = false;
  for (Job& job : submitted_) {
    next_deadline_ = std::min(next_deadline_, job.deadline);
    if (job.execution) {
      collectives_.push_back(std::move(job));
    } else {
      messages_.push_back(std::move(job));
    }
  }
  submitted_.clear();
}

/// Fails the group when an operation is not done in time.
void Group::check_deadlines(Nanos t) {
  if (t < next_deadline_) return;
  const Job* late = nullptr;
  next_deadline_ = kNever;
  const auto look = [&](const Job& job) PARALET_REQUIRES(executor_) {
    if (job.deadline <= t) {
      late = &job;
    } else {
      next_deadline_ = std::min(next_deadline_, job.deadline);
    }
  };
  for (const Job& job : messages_) look(job);
  for (const Job& job : collectives_) look(job);
  if (late != nullptr) {
    fail(Failure::kTransport, std::string(to_string(late->operation->kind)) +
                                  " did not finish within its timeout: a rank has not issued it, or is too slow");
  }
}

void Group::complete(Job& job, Operation::State state) {
  Operation& operation = *job.operation;
  if (state == Operation::State::kFailed) {
    const MutexLock lock(state_);
    operation.failure = failure_;
    operation.error = std::string(to_string(operation.kind)) + " failed: " + error_;
  }
  operation.state.store(state, std::memory_order_release);
  if (job.notify) {
    {
      const MutexLock lock(state_);
      ended_.push_back(job.operation);
      ended_any_ = true;
    }
    takers_work_.notify();
  }
  --unfinished_;
  completion_signal().notify();
}

void Group::fail(Failure failure, const std::string& error) {
  {
    const MutexLock lock(state_);
    if (failure_ == Failure::kNone) {
      failure_ = failure == Failure::kNone ? Failure::kTransport : failure;
      error_ = error;
    }
  }
  failed_ = true;
  completion_signal().notify();  // the executor leaves
  if (!driving_) hand_over();
}

/// Ends all operations of a failed group once the engine uses none of their memory.
void Group::close_links() {
  take_submitted();
  if (!links_closed_) {
    std::vector<std::shared_ptr<Request>> requests;
    for (const Job& job : collectives_) {
      const auto own = job.execution->requests();
      requests.insert(requests.end(), own.begin(), own.end());
    }
    for (const Job& job : messages_) {
      if (job.message->request) requests.push_back(job.message->request);
    }
    if (!closed_) links_->tell(error());
    links_->close(requests);
    links_closed_ = true;
  }
  for (Job& job : collectives_) complete(job, Operation::State::kFailed);
  for (Job& job : messages_) complete(job, Operation::State::kFailed);
  collectives_.clear();
  messages_.clear();
}

// -- messages ----------------------------------------------------------------------------------------------------

bool Group::advance_messages() {
  bool any = false;
  const bool from_any = std::ranges::any_of(messages_, [](const Job& job) { return !job.message->peer.has_value(); });
  point_to_point_.read_announcements(*links_, from_any);
  std::vector<int> held;  // peers with a send that could not start: later ones stay behind it
  for (Job& job : messages_) {
    Message& message = *job.message;
    if (message.request != nullptr) continue;
    const bool sends = job.operation->kind == Kind::kSend;
    if (sends && std::ranges::find(held, *message.peer) != held.end()) continue;
    if (point_to_point_.start(*device_, *links_, message, sends)) {
      any = true;
    } else if (sends) {
      held.push_back(*message.peer);
    }
  }
  // A failure must not interrupt erase_if, which moves the jobs.
  for (const Job& job : messages_) check(*links_, *job.message);
  return std::erase_if(messages_, [this](Job& job) { return finish_message(job); }) > 0 || any;
}

/// Completes a message that has succeeded.
bool Group::finish_message(Job& job) {
  const Message& message = *job.message;
  if (message.request == nullptr || message.request->state != Request::State::kDone ||
      message.request->bytes != message.bytes) {
    return false;
  }
  if (job.operation->kind == Kind::kReceive) job.operation->source = *message.peer;
  complete(job, Operation::State::kDone);
  return true;
}

// -- threads -----------------------------------------------------------------------------------------------------

/// Runs operations until `stop` holds, the group fails, or the time comes.
template <typename Stop>
void Group::drive(Stop stop, Nanos until) {
  Nanos idle_since = 0;
  while (!failed_) {  // it may have failed before this thread became the executor
    const bool any = advance();
    if (failed_ || stop()) return;
    if (any) {
      idle_since = 0;
      continue;
    }
    const Nanos t = now();
    check_deadlines(t);
    if (failed_ || t >= until) return;
    if (idle_since == 0) idle_since = t;
    if (t - idle_since < kSpin && t >= crowded_until_) {
      device_->poll();
      const Nanos yielded_at = now();
      std::this_thread::yield();
      if (now() - yielded_at >= kCrowdedYield) crowded_until_ = now() + kCrowdedTime;
      continue;
    }
    device_->stop_polling();
    const Nanos limit = std::min({until, next_deadline_, t + (links_->busy() ? kLinkSleep : kLongestSleep)}) - t;
    completion_signal().wait(
        [&] {
          executor_.assume_held();
          return advance() || failed_ || stop();
        },
        limit);
    idle_since = 0;
  }
}

void Group::release() {
  driving_ = false;
  executor_.unlock();
  if (waiting_ > 0 && !failed_) {
    completion_signal().notify();  // one of those is the next executor
  } else if (unfinished_ > 0 || (failed_ && !links_closed_)) {
    hand_over();
  }
}

/// Gives the work to a thread in take_finished, or to the group's own.
void Group::hand_over() {
  handed_ = true;
  if (takers_ == 0 || failed_) {
    work_.notify();
  } else {
    takers_work_.notify();
  }
}

/// Waits as a thread that would be the executor.
template <typename Ready>
bool Group::wait_until(Ready ready, Nanos until) {
  while (!ready()) {
    const Nanos t = now();
    if (t >= until) return false;
    if (!failed_ && executor_.try_lock()) {
      driving_ = true;
      drive(ready, until);
      release();
      continue;
    }
    ++waiting_;
    completion_signal().notify();  // the group's thread leaves when it finds nothing to do
    completion_signal().wait([&] { return ready() || (!driving_ && !failed_); }, until - t);
    --waiting_;
    // An executor may have left its work to this thread.
    if ((ready() || now() >= until) && !driving_ && unfinished_ > 0) hand_over();
  }
  return true;
}

bool Group::wait(const Operation& operation, Nanos timeout) {
  if (operation.done()) return true;
  check_owner();
  const Nanos t = now();
  return wait_until([&operation] { return operation.done(); }, timeout < kNever - t ? t + timeout : kNever);
}

std::vector<Group::Handle> Group::take_finished(Nanos timeout) {
  check_owner();
  const Nanos start = now();
  const Nanos until = timeout < kNever - start ? start + timeout : kNever;
  const auto ready = [this] { return ended_any_ || closed_; };
  ++takers_;
  for (Nanos t = start; !ready() && t < until; t = now()) {
    takers_work_.wait([&] { return ready() || (handed_ && !failed_); }, until - t);
    if (failed_ || !handed_.exchange(false)) continue;
    if (!executor_.try_lock()) continue;  // who holds it hands over what is left
    driving_ = true;
    drive([&] { return ready() || waiting_ > 0 || unfinished_ == 0; }, until);
    release();
  }
  --takers_;
  if (handed_) work_.notify();
  const MutexLock lock(state_);
  std::vector<Handle> out(ended_.begin(), ended_.end());
  ended_.clear();
  ended_any_ = false;
  return out;
}

void Group::run() {
  while (!stop_) {
    work_.wait([this] { return stop_ || (handed_ && (takers_ == 0 || failed_)); }, std::nullopt);
    handed_ = false;
    if (stop_) return;
    if (!executor_.try_lock()) continue;  // who holds it hands over what is left
    driving_ = true;
    if (failed_) {
      close_links();
    } else {
      drive([this] { return stop_ || waiting_ > 0 || unfinished_ == 0; }, kNever);
    }
    release();
  }
}

std::string Group::error() const {
  check_owner();
  const MutexLock lock(state_);
  return error_;
}

void Group::abort(const std::string& reason) {
  check_owner();
  fail(Failure::kClosed, reason);
}

void Group::close() {
  if (closed_.exchange(true)) return;
  if (inherited()) {
    // The parent goes on using all of it, and the thread does not exist here.
    executor_.assume_held();
    new std::thread(std::move(thread_));  // NOLINT(cppcoreguidelines-owning-memory)
    static_cast<void>(links_.release());
    return;
  }
  fail(Failure::kClosed, "the group was closed");
  stop_ = true;
  work_.notify();
  thread_.join();
  takers_work_.notify();
  {
    const MutexLock lock(executor_);
    close_links();
    links_.reset();
  }
  completion_signal().notify();
}

}  // namespace paralet::collectives
