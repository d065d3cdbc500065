// SPDX-License-Identifier: Apache-2.0
#include "backend/work.hpp"

namespace paralet {

const char* to_string(Status status) {
  switch (status) {
    case Status::kSuccess:
      return "success";
    case Status::kRemoteAccess:
      return "the peer refused access to its memory (rkey or range)";
    case Status::kRemoteInvalid:
      return "the peer found the request malformed";
    case Status::kRemoteOperation:
      return "the peer could not carry out the request";
    case Status::kRetryExceeded:
      return "the peer did not answer within the retry time";
    case Status::kFlushed:
      return "the queue pair was closed or failed before the request was done";
    case Status::kPortDown:
      return "the RDMA port is down and did not come back within the retry time";
    case Status::kDeviceLost:
      return "the RDMA device failed";
    case Status::kLocal:
      return "the RDMA device refused a request (is its memory registered, and `ulimit -l` large enough?)";
    case Status::kSendRefused:
      return "the kernel refused its packets";
  }
  return "unknown status";
}

}  // namespace paralet
