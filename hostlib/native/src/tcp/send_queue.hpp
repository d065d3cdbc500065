// SPDX-License-Identifier: Apache-2.0
// The work requests of a QP that sends over TCP: what goes to the socket next, and which of them are finished. No
// sockets: bytes out, counts of bytes in.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/work.hpp"
#include "base/ring.hpp"
#include "tcp/frames.hpp"

namespace paralet::tcp {

/// The pieces of one sendmsg. The queue writes headers and short payloads into `between`; other payloads are sent from
/// where they are.
struct Batch {
  static constexpr std::size_t kFrames = 32;
  static constexpr std::size_t kShortPayload = 256;  ///< bytes up to which copying costs less than another piece
  std::array<std::byte, kFrames*(kFrameBytes + kShortPayload)> between;
  std::array<iovec, 2 * kFrames> pieces;
  std::size_t used = 0;   ///< pieces
  std::size_t bytes = 0;  ///< in them
};

class SendQueue {
 public:
  void post(const WorkRequest& request);
  /// The peer answers pings: they are finished when it has, not when its kernel has acknowledged them.
  void expect_answers() { answers_ = true; }

  /// The next bytes of the stream, about `most`. They are not sent until `handed_over` says so.
  void gather(Batch& batch, std::size_t most) const;
  /// The socket took this many of the bytes that `gather` returned.
  void handed_over(std::size_t bytes);
  /// The other end has this many bytes of the connection's stream. Appends the completions of requests that are
  /// finished. Returns whether there were any.
  bool acknowledge(std::uint64_t stream_bytes, std::uint32_t qpn, std::vector<Completion>& completions);

  /// The peer has taken the frames before number `frames`, and says so because of a ping. Appends the completions of
  /// requests that are finished. False, and nothing changes, where that answers none.
  bool answer(std::uint64_t frames, std::uint32_t qpn, std::vector<Completion>& completions);

  /// Sends over a new connection, from frame number `frames` of the QP on: the frames before have arrived. False, and
  /// nothing changes, where that cannot be.
  bool resume(std::uint64_t frames, std::uint32_t qpn, std::vector<Completion>& completions);
  /// Ends all requests. The oldest has `status`, the others are flushed.
  void fail(Status status, std::uint32_t qpn, std::vector<Completion>& completions);
  /// Backend::take_back.
  std::vector<WorkRequest> take_back(std::uint32_t arrived, std::uint32_t qpn, std::vector<Completion>& completions);
  /// Frees the memory of an empty queue.
  void release() { works_.release(); }

  /// Somebody waits for the end of a request. Nobody does for a few SENDs: they are the engine's own, or copies of
  /// messages that are done.
  [[nodiscard]] bool awaited() const { return writes_ > 0 || works_.size() > kFew; }
  /// No request is unfinished.
  [[nodiscard]] bool empty() const { return works_.empty(); }
  /// The socket has taken all of it.
  [[nodiscard]] bool all_handed_over() const { return next_ == works_.size(); }
  /// The oldest request is a ping that the peer's kernel has acknowledged, and the peer has not answered.
  [[nodiscard]] bool awaits_answer() const { return next_ > 0 && works_[0].end <= acknowledged_ && unanswered(0); }
  /// Bytes that the socket has not taken.
  [[nodiscard]] std::uint64_t waiting_bytes() const { return posted_bytes_ - stream_bytes_; }
  /// Bytes of the connection's stream that the socket has taken.
  [[nodiscard]] std::uint64_t stream_bytes() const { return stream_bytes_; }
  /// Bytes of payload that the other end is known to have, over all connections, without headers.
  [[nodiscard]] std::uint64_t payload_bytes() const;
  /// Number of the oldest unfinished frame.
  [[nodiscard]] std::uint64_t first_frame() const { return first_; }

 private:
  struct Work {
    WorkRequest request;
    std::uint64_t end = 0;  ///< position in the stream behind its last byte, once the socket has taken that
  };
  [[nodiscard]] static std::size_t size(const Work& work) { return kFrameBytes + work.request.length; }
  /// Whether the request at this index is a ping that the peer has to answer.
  [[nodiscard]] bool unanswered(std::size_t index) const {
    const WorkRequest& request = works_[index].request;
    return answers_ && request.kind == WorkKind::kWrite && request.length == 0 && first_ + index >= taken_;
  }
  static constexpr std::size_t kFew = 16;  ///< the memory of more is wanted back soon

  void leave_front();
  void pop();
  void finish(Status status, std::uint32_t qpn, std::vector<Completion>& completions);

  Ring<Work> works_;
  std::size_t writes_ = 0;          ///< requests in works_ that are no SENDs
  bool answers_ = false;            ///< the peer answers pings
  std::uint64_t taken_ = 0;         ///< frames that the peer has taken, as its last answer says
  std::size_t next_ = 0;            ///< index in works_ of the one that the socket has not taken, or not all of
  std::size_t offset_ = 0;          ///< bytes of it that the socket has taken
  std::uint64_t first_ = 0;         ///< number of works_.front()
  std::uint64_t stream_bytes_ = 0;  ///< handed over on this connection
  std::uint64_t posted_bytes_ = 0;  ///< the position behind all that is posted
  std::uint64_t acknowledged_ = 0;  ///< bytes of the connection's stream that the other end has
  std::uint64_t front_ = 0;         ///< position of works_.front() in the stream
  std::uint64_t finished_ = 0;      ///< bytes of payload of requests that have arrived
  std::uint32_t consumed_ = 0;      ///< ended requests that took a receive of the peer
};

}  // namespace paralet::tcp
