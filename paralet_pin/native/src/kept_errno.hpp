// SPDX-License-Identifier: Apache-2.0
// errno as the program had it: a program may look at it after calls that do not set it.
#pragma once

#include <cerrno>

namespace paralet::pin {

/// Puts errno back at its end.
class KeptErrno {
 public:
  KeptErrno() : was_(errno) {}
  KeptErrno(const KeptErrno&) = delete;
  KeptErrno& operator=(const KeptErrno&) = delete;
  ~KeptErrno() { errno = was_; }

 private:
  int was_;
};

}  // namespace paralet::pin
