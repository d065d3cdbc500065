// SPDX-License-Identifier: Apache-2.0
// Which rank of which job a process is, as launchers tell it by environment variables.
#pragma once

#include <sys/types.h>

#include <compare>
#include <map>
#include <optional>
#include <string>

namespace paralet::pin {

struct Member {
  std::string job;
  unsigned rank = 0;
  unsigned ranks = 0;                               ///< of the job
  auto operator<=>(const Member&) const = default;  // NOLINT(modernize-use-nullptr): of what the compiler writes
};

using Variables = std::map<std::string, std::string>;

/// Those of this process.
Variables own_variables();
/// Those that another process began with; none where the kernel does not tell them.
Variables variables_of(pid_t pid);

/// The member that these variables name. `job` is the name of its job; where it is empty, the job is named by the
/// address at which torch's ranks meet. Nothing where no launcher has told the rank, or no name is known.
std::optional<Member> member_of(const Variables& variables, const std::string& job);

}  // namespace paralet::pin
