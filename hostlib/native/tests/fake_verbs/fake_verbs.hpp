// SPDX-License-Identifier: Apache-2.0
// A fake libibverbs for tests, with one NIC. Queue pairs of the process reach each other: a message arrives when it is
// posted, and its completions wait until they are polled. The calls of the engine are recorded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#define FAKE_VERBS_API __attribute__((visibility("default")))

namespace fake_verbs {

inline constexpr std::uint32_t kAddress = 0x7F000001;  ///< 127.0.0.1, of the NIC: GID 3. GID 5 is that of ::1
inline constexpr std::uint32_t kFirstQpn = 17;         ///< after each reset; no queue pair may be left then
inline constexpr std::uint32_t kEceVendor = 0x02C9;
inline constexpr std::uint32_t kEceOptions = 0x35;  ///< offered
inline constexpr std::uint32_t kEceAgreed = 0x31;   ///< the part that the other side accepts

/// Properties of the NIC. Set them before a device is opened.
struct Nic {
  int completions = 4096;  ///< entries of a completion queue
  int dmabuf_error = 0;    ///< errno of every registration of a dma-buf, 0: they work
  int ece_error = 0;       ///< result of ibv_set_ece
  int sport_error = 95;    ///< result of mlx5dv_modify_qp_udp_sport; default EOPNOTSUPP: no mlx5 NIC
  std::uint32_t ece_vendor = kEceVendor;
  bool holds = false;               ///< completions are held back (hold_completions)
  bool discards = true;             ///< throws the completions of a queue pair away when it is destroyed, as mlx5 does
  std::int64_t ns_per_byte = 0;     ///< of requests of 16 KiB and more: they complete only after this time
  bool infiniband = false;          ///< the link layer, instead of Ethernet: no RoCE GIDs
  bool relaxed_ordering = true;     ///< registrations may have it
  std::uint8_t link_width = 0;      ///< ibv_port_attr::active_width
  std::uint8_t link_speed = 0;      ///< ibv_port_attr::active_speed
  std::uint32_t link_speed_ex = 0;  ///< ibv_port_attr::active_speed_ex
  /// Bytes of ibv_port_attr that the library knows: 56 since rdma-core 49, 52 before; 0: it has ibv_query_port only.
  std::size_t port_attributes = 56;
  std::int64_t rtt_ns = 0;  ///< until any request completes
  std::uint64_t page_bytes =
      4096;  ///< of the kernel: a region and its address for peers have the same offset in a page
};

/// What the engine has done with it.
struct Record {
  std::vector<std::string>
      calls;  ///< of queue pairs: "query_ece 17", "set_ece 17 0x35", "rtr 17", "rts 17", "sport 17 50000"
  std::vector<unsigned> labels;                        ///< flow labels at RTR
  std::vector<std::pair<unsigned, std::string>> gids;  ///< index of the own GID, and the peer's 16 bytes, at RTR
  std::vector<unsigned> pkeys;                         ///< indices of partition keys at INIT
  std::size_t most_work = 0;                           ///< the most requests and receives that were outstanding at once
  std::size_t reads = 0;
  std::size_t inlined_from_device = 0;  ///< requests that would have a processor read device memory
  std::size_t regions = 0;              ///< registered now
  std::size_t registering = 0;          ///< registrations that are held now
  std::size_t deregistering = 0;        ///< deregistrations that are held now
  std::size_t held = 0;                 ///< calls of hold_call that are held now
  std::size_t relaxed = 0;              ///< registrations with relaxed ordering
  std::size_t queue_pairs = 0;          ///< that exist now
  std::size_t lost = 0;                 ///< requests on bad paths now
  std::size_t receives = 0;             ///< in all shared receive queues now
  std::size_t refused_ece = 0;          ///< calls of ibv_set_ece with a mask
  bool fork_safe = false;               ///< ibv_fork_init was the first call of the process
};

/// What happens to packets with a UDP source port, and to their acknowledgements.
enum class Path : std::uint8_t {
  kGood,
  kDead,  ///< they are lost
  kMute,  ///< they arrive, their acknowledgements are lost
};

/// Its properties; devices that run may read them.
FAKE_VERBS_API Nic& nic();
/// Holds completions back, or delivers them again, while devices run.
FAKE_VERBS_API void hold_completions(bool holds);
/// Queue pairs that go to the error state return nothing and raise no event until this is false again.
FAKE_VERBS_API void hold_flushes(bool holds);
FAKE_VERBS_API Record record();
/// Of all queue pairs that send with this port. What was lost is sent again when the path is good, or the port changed.
FAKE_VERBS_API void set_path(std::uint16_t port, Path path);
/// Of all queue pairs that send from this GID: what a NIC of its own would do to them.
FAKE_VERBS_API void set_gid(unsigned index, Path path);
/// Moves queue pairs that send with this port to the error state, as the kernel's rxe does when it finds no route: the
/// requests come back as flushed, and nothing else tells the reason.
FAKE_VERBS_API void break_queue_pairs(std::uint16_t port);
/// The network loses packets with more than so many bytes of payload, of all queue pairs. 0: none.
FAKE_VERBS_API void narrow_route(std::uint32_t path_mtu);
/// Queue pairs that send from this GID give up what they have lost, as after the last retry.
FAKE_VERBS_API void end_retries(unsigned gid);
/// Of queue pairs that send from this GID: after `before` more calls the next `count` calls of ibv_modify_qp to RTR
/// fail, as where the kernel finds no route.
FAKE_VERBS_API void refuse_routes(unsigned gid, unsigned before, unsigned count);
/// Clears the record and restores the default properties.
FAKE_VERBS_API void reset();
/// Raises an event (ibv_event_type): of the queue pair `number` for its own context, of the port `number` or of the NIC
/// for all contexts.
FAKE_VERBS_API void happen(int event, std::uint32_t number);
/// The same of a port, for one context only: the one that was opened as number `context` of those that are open.
FAKE_VERBS_API void happen_on(std::size_t context, int event, std::uint32_t number);
/// The NIC of this context, numbered as in happen_on, fails for good: it raises IBV_EVENT_DEVICE_FATAL, sends, takes
/// and returns nothing more, and calls that need it fail.
FAKE_VERBS_API void fail_nic(std::size_t context);
/// Nobody takes completions from the NIC of this context, numbered as in happen_on: polls of them do not return until
/// `resume`, as in a process that is stopped. The NIC goes on.
FAKE_VERBS_API void stop(std::size_t context);
FAKE_VERBS_API void resume();
/// Registrations of so many bytes do not return until the next call. 0: none is held.
FAKE_VERBS_API void hold_registrations(std::size_t bytes);
/// The same of deregistrations.
FAKE_VERBS_API void hold_deregistrations(std::size_t bytes);
/// A call that takes long.
enum class Call : std::uint8_t {
  kCreate,   ///< ibv_create_qp
  kConnect,  ///< ibv_modify_qp to RTR
  kSetPort,  ///< mlx5dv_modify_qp_udp_sport
  kDestroy,  ///< ibv_destroy_qp
};
/// After `before` more calls of this kind the next one does not return until release_call. Later ones do.
FAKE_VERBS_API void hold_call(Call call, unsigned before);
FAKE_VERBS_API void release_call();
/// mlx5dv_modify_qp_udp_sport, which a separate fake libmlx5 exports.
FAKE_VERBS_API int modify_udp_sport(std::uint32_t qpn, std::uint16_t port);
/// Memory that stands for another device's. `fd` names it as a dma-buf. Payload must not be inlined from it.
FAKE_VERBS_API void share_device_memory(int fd, std::byte* base, std::size_t length);

}  // namespace fake_verbs

/// The UDP source port of a queue pair, for programs that look all functions up.
extern "C" FAKE_VERBS_API std::uint16_t fake_verbs_port(std::uint32_t qpn);
