// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/cores.hpp"

namespace paralet {
namespace {

namespace fs = std::filesystem;

/// A tree of control groups; the process is in /job/rank.
struct Groups {
  Groups() {
    fs::create_directories(root / "job" / "rank");
    write("own", "1:cpu:/old\n0::/job/rank\n");
  }
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;
  ~Groups() { fs::remove_all(root); }
  void write(const std::string& file, const std::string& text) const { std::ofstream(root / file) << text; }
  [[nodiscard]] unsigned granted() const { return granted_cores(root / "own", root); }

  const fs::path root = fs::temp_directory_path() / ("paralet-groups-" + std::to_string(::getpid()));
};

TEST_CASE("the least of what a control group and those above it grant counts, rounded up") {
  const Groups groups;
  CHECK(groups.granted() == 0);
  groups.write("job/cpu.max", "max 100000\n");
  CHECK(groups.granted() == 0);
  groups.write("job/cpu.max", "800000 100000\n");
  CHECK(groups.granted() == 8);
  groups.write("job/rank/cpu.max", "250000 100000\n");
  CHECK(groups.granted() == 3);
  groups.write("cpu.max", "50000 100000\n");
  CHECK(groups.granted() == 1);
}

TEST_CASE("files that cannot be read or understood limit nothing") {
  const Groups groups;
  for (const char* text : {"", "100000", "100000 0", "none of this"}) {
    groups.write("job/cpu.max", text);
    CHECK(groups.granted() == 0);
  }
  CHECK(granted_cores(groups.root / "nothing", groups.root) == 0);
}

TEST_CASE("this process may use at least one core") { CHECK(usable_cores() >= 1); }

}  // namespace
}  // namespace paralet
