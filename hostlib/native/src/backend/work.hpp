// SPDX-License-Identifier: Apache-2.0
// Work requests that the engine passes to a back end, and their completions. The terms are those of the IBTA
// specification, volume 1, chapters 10 and 11.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paralet {

enum class WorkKind : std::uint8_t { kWrite, kWriteImm, kSend, kRead };  // kRead: only the fence of a NIC uses it

struct WorkRequest {
  WorkKind kind = WorkKind::kWrite;
  std::uint64_t cookie = 0;  ///< returned in the completion
  /// Payload; it must stay valid until completion.
  const std::byte* data = nullptr;
  std::uint32_t length = 0;  ///< bytes
  std::uint64_t remote_address = 0;
  std::uint32_t rkey = 0;
  std::uint32_t imm = 0;
  std::uint32_t memory = 0;  ///< registration that holds `data`, 0: none
};

enum class Status : std::uint8_t {
  kSuccess,
  kRemoteAccess,     ///< the peer refused rkey or range
  kRemoteInvalid,    ///< the peer found the request malformed
  kRemoteOperation,  ///< the peer could not carry it out
  kRetryExceeded,    ///< nothing came back within the retry time
  kFlushed,          ///< the QP failed or closed before this request was done
  kPortDown,         ///< the link is down
  kDeviceLost,       ///< the NIC has failed
  kLocal,            ///< the NIC refused the request
  kSendRefused,      ///< the kernel refused the packets; Completion::imm is the errno
};
const char* to_string(Status status);

/// A finished send-side request, a received message, or a change of a QP.
struct Completion {
  enum class Kind : std::uint8_t {
    kSent,
    kReceivedSend,
    kReceivedWriteImm,
    kAcksMayBeLost,  ///< the peer resent what was acknowledged a timeout ago: acknowledgements of this QP may be lost
    kQpFailed,       ///< the QP failed, not only a request; `status` gives the reason
    kQpBroken,       ///< the NIC moved the QP to the error state and gave no reason (kFlushed), or its path is lost for
                     ///< the reason in `status`; its requests stay, for take_back
    kPathMtu,        ///< the route takes no packets of the QP's path MTU any more: `imm` is the largest that it takes;
                     ///< the QP sends nothing more, and its requests stay, for take_back
    kFenced,         ///< Backend::post_fence
    kStopped,        ///< Backend::stop_qp; `imm` is the number of messages that arrived on the QP
    kPortChanged,    ///< Backend::set_port; `imm` is the port, which the QP has if `status` is kSuccess
  };
  Kind kind = Kind::kSent;
  Status status = Status::kSuccess;
  std::uint32_t qpn = 0;
  std::uint64_t cookie = 0;  ///< of the work request, or of the receive buffer consumed
  std::uint32_t byte_length = 0;
  std::uint32_t imm = 0;  ///< immediate data; of kSendRefused the errno
};

/// Memory for one incoming SEND, or for the completion of one WRITE with immediate data.
struct ReceiveBuffer {
  std::byte* data = nullptr;
  std::uint32_t length = 0;  ///< bytes
  std::uint64_t cookie = 0;  ///< returned in the completion
};

/// Counters of a QP since its creation. A back end leaves at 0 those that it cannot observe.
struct QpCounters {
#define QP_COUNTER(name, meaning) std::uint64_t name = 0;
#include "base/counters.inc"

  QpCounters& operator+=(const QpCounters& other) {
#define QP_COUNTER(name, meaning) name += other.name;
#include "base/counters.inc"
    return *this;
  }
};

}  // namespace paralet
