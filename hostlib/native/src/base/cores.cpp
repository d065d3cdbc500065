// SPDX-License-Identifier: Apache-2.0
#include "base/cores.hpp"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <thread>

namespace paralet {
namespace {

/// Of one group, 0: no limit.
unsigned granted_by(const std::filesystem::path& group) {
  std::ifstream in(group / "cpu.max");
  std::string quota;
  double period_us = 0;
  if (!(in >> quota >> period_us) || period_us <= 0) return 0;
  const double quota_us = std::strtod(quota.c_str(), nullptr);  // 0 of "max"
  return static_cast<unsigned>(std::min(1e6, std::ceil(quota_us / period_us)));
}

}  // namespace

unsigned granted_cores(const std::filesystem::path& own, const std::filesystem::path& root) {
  std::ifstream in(own);
  std::filesystem::path group;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("0::/")) group = line.substr(4);
  }
  unsigned least = granted_by(root);
  std::filesystem::path at = root;
  for (const auto& name : group) {
    at /= name;
    const unsigned granted = granted_by(at);
    if (granted > 0) least = least > 0 ? std::min(least, granted) : granted;
  }
  return least;
}

unsigned usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // It fails where there are more cores than the set has room for.
  const unsigned affine = ::sched_getaffinity(0, sizeof set, &set) == 0 ? static_cast<unsigned>(CPU_COUNT(&set))
                                                                        : std::thread::hardware_concurrency();
  const unsigned granted = granted_cores("/proc/self/cgroup", "/sys/fs/cgroup");
  return std::max(1U, granted > 0 ? std::min(affine, granted) : affine);
}

}  // namespace paralet
