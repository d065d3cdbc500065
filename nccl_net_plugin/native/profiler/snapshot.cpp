// SPDX-License-Identifier: Apache-2.0
#include "snapshot.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>

namespace paralet::profiler {
namespace {

/// CRC-32 as in zlib.
std::uint32_t crc32(const std::string& text) {
  static constexpr auto kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
      std::uint32_t value = byte;
      for (int bit = 0; bit < 8; ++bit) value = (value & 1U) != 0 ? value >> 1U ^ 0xEDB88320U : value >> 1U;
      table[byte] = value;
    }
    return table;
  }();
  std::uint32_t crc = ~0U;
  for (const char byte : text) crc = crc >> 8U ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFFU];
  return ~crc;
}

const char* name_of(Wait on) {
  switch (on) {
    case Wait::kGpu:
      return "gpu";
    case Wait::kPeer:
      return "peer";
    case Wait::kNetwork:
      return "network";
    case Wait::kNothing:
      break;
  }
  return "nothing";
}

double seconds(std::int64_t ns) { return static_cast<double>(ns) / 1e9; }

std::string address(std::uint32_t ipv4) {
  return std::to_string(ipv4 >> 24U) + '.' + std::to_string(ipv4 >> 16U & 0xFFU) + '.' +
         std::to_string(ipv4 >> 8U & 0xFFU) + '.' + std::to_string(ipv4 & 0xFFU);
}

nlohmann::json json_of(const Operation& operation) {
  nlohmann::json waits = nlohmann::json::array();
  for (const Waiting& wait : operation.waits) {
    waits.push_back({{"peer", wait.transfers.peer},
                     {"channel", wait.transfers.channel},
                     {"send", wait.transfers.send},
                     {"step", wait.step},
                     {"steps", wait.transfers.steps},
                     {"on", name_of(wait.on)},
                     {"since_s", seconds(wait.since_ns)}});
  }
  nlohmann::json document = {{"communicator", operation.communicator->hash},
                             {"name", operation.communicator->name},
                             {"ranks", operation.communicator->ranks},
                             {"rank", operation.communicator->rank},
                             {"function", operation.function},
                             {"type", operation.type},
                             {"algorithm", operation.algorithm},
                             {"protocol", operation.protocol},
                             {"sequence", operation.sequence},
                             {"count", operation.count},
                             {"number", operation.number},
                             {"peer", operation.peer},
                             {"enqueued_s", seconds(operation.enqueued_ns)},
                             {"began_s", seconds(operation.began_ns)},
                             {"ended_s", seconds(operation.ended_ns)},
                             {"sent_bytes", operation.sent_bytes},
                             {"received_bytes", operation.received_bytes},
                             {"flowlets", operation.flowlets},
                             {"flowlets_s", seconds(operation.flowlets_ns)},
                             {"slowest", nullptr},
                             {"waits", std::move(waits)}};
  if (operation.flowlets != 0) {
    const SlowestFlowlet& slowest = operation.slowest;
    document["slowest"] = {{"duration_s", seconds(slowest.duration_ns)},
                           {"lane", slowest.lane},
                           {"peer", address(slowest.peer)},
                           {"port", slowest.port}};
  }
  return document;
}

}  // namespace

std::string snapshot_of(const std::vector<Operation>& operations, std::uint64_t generation, std::int64_t now_ns) {
  nlohmann::json document = {
      {"generation", generation}, {"time_s", seconds(now_ns)}, {"pid", ::getpid()}, {"operations", nullptr}};
  document["operations"] = nlohmann::json::array();
  for (const Operation& operation : operations) document["operations"].push_back(json_of(operation));
  // Names come from the application: what is no UTF-8 is replaced.
  const std::string body = document.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return "paralet-operations 1 " + std::to_string(crc32(body)) + ' ' + std::to_string(body.size()) + '\n' + body;
}

SnapshotFile::SnapshotFile() {
  constexpr unsigned kNoExecSeal = 8;  // MFD_NOEXEC_SEAL, since Linux 6.3; may be insisted on (vm.memfd_noexec)
  file_ = ::memfd_create(kName, MFD_CLOEXEC | kNoExecSeal);
  if (file_ < 0) file_ = ::memfd_create(kName, MFD_CLOEXEC);
}

SnapshotFile::~SnapshotFile() {
  if (file_ >= 0) ::close(file_);
}

void SnapshotFile::write(const std::string& snapshot) {
  if (file_ >= 0) static_cast<void>(::pwrite(file_, snapshot.data(), snapshot.size(), 0));
}

}  // namespace paralet::profiler
