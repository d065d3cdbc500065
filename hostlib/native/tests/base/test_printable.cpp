// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>

#include "base/printable.hpp"

namespace paralet {
namespace {

TEST_CASE("text is shown in one line without control characters") {
  CHECK(printable("no such listener: 10.0.0.1") == "no such listener: 10.0.0.1");
  CHECK(printable("\x1b[31m\nparalet: forged\r\t\x7f") == "\\x1b[31m\\nparalet: forged\\x0d\\x09\\x7f");
  CHECK(printable("\xc2\x9b \xe2\x80\xae") == "\\xc2\\x9b \\xe2\\x80\\xae");  // a C1 control, a direction mark
  CHECK(printable(std::string(1, '\0')) == "\\x00");
  CHECK(printable(printable("a\\b\x1b")) == printable("a\\b\x1b"));
}

}  // namespace
}  // namespace paralet
