// SPDX-License-Identifier: Apache-2.0
#include "member.hpp"

#include <unistd.h>

#include <array>
#include <charconv>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "path_client/options.hpp"

namespace paralet::pin {
namespace {

constexpr unsigned kMostRanks = 1U << 20;  // as the path service takes
constexpr std::array<std::pair<const char*, const char*>, 4> kRanks{{
    {"RANK", "WORLD_SIZE"},  // torch, and Kubernetes' PyTorchJob
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"PMI_RANK", "PMI_SIZE"},  // MPICH
    {"SLURM_PROCID", "SLURM_NTASKS"},
}};

std::string value_of(const Variables& variables, const char* name) {
  const auto found = variables.find(name);
  return found == variables.end() ? std::string() : found->second;
}

std::optional<unsigned> number(const std::string& text) {
  unsigned value = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  return read.ec == std::errc() && read.ptr == end ? std::optional(value) : std::nullopt;
}

void add(Variables& variables, std::string_view entry) {
  const auto equals = entry.find('=');
  if (equals != std::string_view::npos) variables.emplace(entry.substr(0, equals), entry.substr(equals + 1));
}

}  // namespace

Variables own_variables() {
  Variables found;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) add(found, *entry);
  return found;
}

Variables variables_of(pid_t pid) {
  Variables found;
  std::ifstream file("/proc/" + std::to_string(pid) + "/environ", std::ios::binary);
  for (std::string entry; std::getline(file, entry, '\0');) add(found, entry);
  return found;
}

std::optional<Member> member_of(const Variables& variables, const std::string& job) {
  std::string name = job;
  if (name.empty() && variables.contains("MASTER_ADDR") && variables.contains("MASTER_PORT")) {
    name = value_of(variables, "MASTER_ADDR") + "-" + value_of(variables, "MASTER_PORT");
  }
  if (name.empty() || !path_client::is_job(name)) return std::nullopt;
  for (const auto& [rank_name, ranks_name] : kRanks) {
    const auto rank = number(value_of(variables, rank_name));
    const auto ranks = number(value_of(variables, ranks_name));
    if (rank && ranks && *rank < *ranks && *ranks <= kMostRanks) {
      return Member{.job = name, .rank = *rank, .ranks = *ranks};
    }
  }
  return std::nullopt;
}

}  // namespace paralet::pin
