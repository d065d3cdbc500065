// SPDX-License-Identifier: Apache-2.0
#include "components.hpp"

#include <algorithm>
#include <numeric>
#include <thread>

#include "index.hpp"

namespace paralet::planners {

namespace {

class UnionFind {
 public:
  explicit UnionFind(std::size_t size) : parent_(size) { std::iota(parent_.begin(), parent_.end(), 0U); }
  std::size_t find(std::size_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void join(std::size_t a, std::size_t b) { parent_[find(a)] = find(b); }

 private:
  std::vector<std::size_t> parent_;
};

}  // namespace

std::vector<std::int32_t> components(std::int32_t tors, std::span<const std::int32_t> src,
                                     std::span<const std::int32_t> dst) {
  UnionFind sets(2 * index(tors));
  for (std::size_t i = 0; i < src.size(); ++i) {
    if (src[i] != dst[i]) sets.join(index(src[i]), index(tors + dst[i]));
  }
  std::vector<std::int32_t> number(2 * index(tors), -1);
  std::vector<std::int32_t> answer(src.size(), -1);
  std::int32_t next = 0;
  for (std::size_t i = 0; i < src.size(); ++i) {
    if (src[i] == dst[i]) continue;
    auto& it = number[sets.find(index(src[i]))];
    if (it < 0) it = next++;
    answer[i] = it;
  }
  return answer;
}

void by_component(std::int32_t tors, std::span<const std::int32_t> src, std::span<const std::int32_t> dst,
                  std::span<const std::int32_t> order, int threads,
                  const std::function<void(std::span<const std::int32_t>)>& work) {
  if (threads <= 1) {
    std::vector<std::int32_t> crossing;
    crossing.reserve(order.size());
    for (const auto i : order) {
      if (src[index(i)] != dst[index(i)]) crossing.push_back(i);
    }
    work(crossing);
    return;
  }
  const auto component = components(tors, src, dst);
  std::vector<std::size_t> size;
  for (const auto c : component) {
    if (c < 0) continue;
    size.resize(std::max(size.size(), index(c) + 1));
    ++size[index(c)];
  }
  std::vector<std::size_t> largest_first(size.size());
  std::iota(largest_first.begin(), largest_first.end(), 0U);
  std::stable_sort(largest_first.begin(), largest_first.end(), [&](auto a, auto b) { return size[a] > size[b]; });
  std::vector<std::vector<std::int32_t>> share(std::min(static_cast<std::size_t>(threads), size.size()));
  std::vector<std::size_t> taken(share.size());
  std::vector<std::size_t> thread_of(size.size());
  for (const auto c : largest_first) {
    const auto least = std::min_element(taken.begin(), taken.end()) - taken.begin();
    thread_of[c] = static_cast<std::size_t>(least);
    taken[thread_of[c]] += size[c];
  }
  for (const auto i : order) {
    if (component[index(i)] >= 0) share[thread_of[index(component[index(i)])]].push_back(i);
  }
  std::vector<std::jthread> running;
  for (std::size_t t = 1; t < share.size(); ++t) running.emplace_back([&work, &share, t] { work(share[t]); });
  if (!share.empty()) work(share[0]);
}

}  // namespace paralet::planners
