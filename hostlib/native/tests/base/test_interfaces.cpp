// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/interfaces.hpp"

namespace paralet {
namespace {

namespace fs = std::filesystem;

/// A folder like /sys/class/net.
struct Tree {
  Tree() {
    std::string name = (fs::temp_directory_path() / "paralet-interfaces-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    root = name;
  }
  ~Tree() { fs::remove_all(root); }
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;
  void add(const std::string& interface, const std::string& speed, bool with_device) const {
    fs::create_directories(root / interface);
    if (with_device) fs::create_directories(root / interface / "device");
    std::ofstream(root / interface / "speed") << speed;
  }
  fs::path root;
};

TEST_CASE("the rate of a NIC is known, that of virtual interfaces and of links without a carrier is not") {
  const Tree tree;
  tree.add("nic", "100000\n", true);
  tree.add("down", "-1\n", true);
  tree.add("silent", "", true);
  tree.add("veth", "10000\n", false);
  CHECK(nic_rate_bps("nic", tree.root) == 100e9);
  for (const std::string interface : {"down", "silent", "veth", "absent"}) {
    CAPTURE(interface);
    CHECK_FALSE(nic_rate_bps(interface, tree.root).has_value());
  }
}

}  // namespace
}  // namespace paralet
