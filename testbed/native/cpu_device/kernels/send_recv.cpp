// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "plans.hpp"

namespace paralet::cpu_device {
namespace {

template <typename Chunk>
Plan each_chunk(std::size_t bytes, std::size_t chunk_bytes, Chunk chunk) {
  Plan plan;
  std::size_t done = 0;
  do {
    const std::size_t count = std::min(chunk_bytes, bytes - done);
    plan.push_back(chunk(done, count));
    done += count;
  } while (done < bytes);
  return plan;
}

}  // namespace

Plan send_plan(const std::byte* data, std::size_t bytes, std::size_t chunk_bytes) {
  return each_chunk(bytes, chunk_bytes, [data](std::size_t offset, std::size_t count) {
    return Operation{.source = data + offset, .send = true, .count = count};
  });
}

Plan receive_plan(std::byte* data, std::size_t bytes, std::size_t chunk_bytes) {
  return each_chunk(bytes, chunk_bytes, [data](std::size_t offset, std::size_t count) {
    return Operation{.receive = true, .target = data + offset, .count = count};
  });
}

}  // namespace paralet::cpu_device
