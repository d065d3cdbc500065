// SPDX-License-Identifier: Apache-2.0
// A libibverbs for tests, with one NIC. Queue pairs of one process reach each other: a message has arrived when it is
// posted, and its completions wait until they are fetched. What the engine asks for is written down.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#define FAKE_VERBS_API __attribute__((visibility("default")))

namespace fake_verbs {

inline constexpr std::uint32_t kAddress = 0x7F000001;  ///< 127.0.0.1, of the NIC
inline constexpr std::uint32_t kFirstQpn = 17;         ///< after each reset, with which no queue pair may be left
inline constexpr std::uint32_t kEceVendor = 0x02C9;
inline constexpr std::uint32_t kEceOptions = 0x35;  ///< offered
inline constexpr std::uint32_t kEceAgreed = 0x31;   ///< of which so much is taken

/// How the NIC is; to be set before a device is opened.
struct Nic {
  int completions = 4096;  ///< that its completion queues have room for
  int dmabuf_error = 0;    ///< errno of every registration of a dma-buf, 0: they work
  int ece_error = 0;       ///< what ibv_set_ece answers
  int sport_error = 95;    ///< what mlx5dv_modify_qp_udp_sport answers: no mlx5 NIC (EOPNOTSUPP)
  std::uint32_t ece_vendor = kEceVendor;
  bool holds = false;  ///< completions are made and not delivered
};

/// What has been asked of it.
struct Asked {
  std::vector<std::string>
      calls;  ///< of queue pairs: "query_ece 17", "set_ece 17 0x35", "rtr 17", "rts 17", "sport 17 50000"
  std::vector<unsigned> labels;  ///< flow labels at RTR
  std::size_t most_work = 0;     ///< requests and receives of which the engine had not seen the end, at once
  std::size_t reads = 0;
  std::size_t inlined_from_device = 0;  ///< payload of device memory that a processor would have touched
  std::size_t regions = 0;              ///< registered now
  std::size_t queue_pairs = 0;          ///< that exist now
};

FAKE_VERBS_API Nic& nic();
FAKE_VERBS_API Asked asked();
/// Forgets what was asked, and is a NIC as at first.
FAKE_VERBS_API void reset();
/// An event (ibv_event_type) of the queue pair of that number, which its context is told of, or of the port of that
/// number or the NIC, which all are told of.
FAKE_VERBS_API void happen(int event, std::uint32_t number);
/// mlx5dv_modify_qp_udp_sport, of a library of its own.
FAKE_VERBS_API int modify_udp_sport(std::uint32_t qpn, std::uint16_t port);
/// Memory that stands for another device's: `fd` names it as a dma-buf, and payload must not be inlined from it.
FAKE_VERBS_API void share_device_memory(int fd, std::byte* base, std::size_t length);

}  // namespace fake_verbs
