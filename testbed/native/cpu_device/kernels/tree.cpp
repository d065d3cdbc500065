// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "plans.hpp"

namespace paralet::cpu_device {
namespace {

template <typename Chunk>
Plan each_chunk(const Part& part, std::size_t element_bytes, Chunk chunk) {
  Plan plan;
  for (std::size_t done = 0; done < part.count; done += part.chunk) {
    Operation operation = chunk((part.offset + done) * element_bytes);
    operation.count = std::min(part.chunk, part.count - done);
    plan.push_back(operation);
  }
  return plan;
}

}  // namespace

Plan tree_root(const Part& part, std::size_t element_bytes, Buffers buffers) {
  return each_chunk(part, element_bytes, [&](std::size_t offset) {
    return Operation{.source = buffers.send + offset,
                     .receive = true,
                     .target = buffers.receive + offset,
                     .send = true,
                     .post = true};
  });
}

Plan tree_up(const Part& part, TreePlace place, std::size_t element_bytes, Buffers buffers) {
  return each_chunk(part, element_bytes, [&](std::size_t offset) {
    return Operation{.source = buffers.send + offset, .receive = place == TreePlace::inner, .send = true};
  });
}

Plan tree_down(const Part& part, TreePlace place, std::size_t element_bytes, Buffers buffers) {
  return each_chunk(part, element_bytes, [&](std::size_t offset) {
    return Operation{.receive = true, .target = buffers.receive + offset, .send = place == TreePlace::inner};
  });
}

}  // namespace paralet::cpu_device
