// SPDX-License-Identifier: Apache-2.0
#include "verbs/driver.hpp"

#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdio>
#include <string_view>
#include <utility>

namespace paralet::verbs {

bool ignores_flow_label(const std::string& device) {
  const std::string place = "/sys/class/infiniband/" + device;
  if (::access((place + "/parent").c_str(), F_OK) == 0) {  // a software device: it names its network interface
    utsname system{};
    int major = 0;
    int minor = 0;
    return ::uname(&system) == 0 && std::sscanf(system.release, "%d.%d", &major, &minor) == 2 &&
           std::pair(major, minor) < std::pair(5, 18);
  }
  std::array<char, PATH_MAX> target{};
  const ssize_t length = ::readlink((place + "/device/driver").c_str(), target.data(), target.size());
  if (length <= 0) return false;
  const std::string_view path(target.data(), static_cast<std::size_t>(length));
  return path.substr(path.rfind('/') + 1).starts_with("bnxt");
}

}  // namespace paralet::verbs
