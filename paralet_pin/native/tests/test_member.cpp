// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <unistd.h>

#include "member.hpp"

namespace paralet::pin {
namespace {

TEST_CASE("a process is a rank where its launcher tells the rank and how many there are") {
  const Member third{.job = "bert", .rank = 3, .ranks = 8};
  CHECK(member_of({{"RANK", "3"}, {"WORLD_SIZE", "8"}}, "bert") == third);
  CHECK(member_of({{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "8"}}, "bert") == third);
  CHECK(member_of({{"PMI_RANK", "3"}, {"PMI_SIZE", "8"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}, "bert") ==
        third);
  CHECK(member_of({{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "8"}, {"RANK", ""}}, "bert") == third);
  for (const char* wrong : {"", "8", "-1", "3 ", "x", "99999999999"}) {
    CHECK_FALSE(member_of({{"RANK", wrong}, {"WORLD_SIZE", "8"}}, "bert"));
  }
  CHECK_FALSE(member_of({{"RANK", "3"}}, "bert"));
  CHECK_FALSE(member_of({{"RANK", "3"}, {"WORLD_SIZE", "1048577"}}, "bert"));
}

TEST_CASE("a job without a name is named by the address at which torch's ranks meet") {
  Variables variables{{"RANK", "3"}, {"WORLD_SIZE", "8"}};
  CHECK_FALSE(member_of(variables, ""));
  variables["MASTER_ADDR"] = "10.0.0.1";
  CHECK_FALSE(member_of(variables, ""));
  variables["MASTER_PORT"] = "29500";
  CHECK(member_of(variables, "")->job == "10.0.0.1-29500");
  CHECK(member_of(variables, "bert")->job == "bert");
  variables["MASTER_ADDR"] = "no name";
  CHECK_FALSE(member_of(variables, ""));
}

TEST_CASE("the variables of another process are those that it began with") {
  CHECK(variables_of(::getpid()).contains("PATH"));
  CHECK(own_variables().contains("PATH"));
  CHECK(variables_of(-1).empty());
}

}  // namespace
}  // namespace paralet::pin
