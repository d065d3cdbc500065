// SPDX-License-Identifier: Apache-2.0
#include "engine/memory_fences.hpp"

#include <string>
#include <utility>

#include "base/errors.hpp"
#include "engine/posted_work.hpp"

namespace paralet {

void MemoryFences::start(std::shared_ptr<Request> request) {
  Request& fence = *request;
  fence.failure = Failure::kNone;
  if (!shard_.open()) {
    results_.fail(fence, Failure::kClosed, "the device was closed");
    return;
  }
  try {
    shard_.backend().post_fence(fence.rkey, fence.region_offset, cookie_of(fence));
    fences_.push_back(std::move(request));
  } catch (const DeviceError& error) {
    results_.fail(fence, Failure::kDevice, error.what());
  }
}

void MemoryFences::on_fenced(const Completion& completion) {
  Request& fence = *request_of(completion.cookie);
  const auto keep = fences_.remove(fence);
  if (completion.status == Status::kSuccess) {
    results_.finish(fence);
  } else {
    results_.fail(fence, Failure::kDevice,
                  std::string("cannot flush received data to device memory: ") + to_string(completion.status));
  }
}

void MemoryFences::fail_all() {
  while (Request* fence = fences_.front()) {
    const auto keep = fences_.remove(*fence);
    results_.fail(*fence, Failure::kClosed, "the device was closed");
  }
}

}  // namespace paralet
