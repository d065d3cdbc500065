// SPDX-License-Identifier: Apache-2.0
// The ports that the path service plans for flows. A client of it has one path, or with measured paths one set of
// paths, towards a peer and port. So each slot is a client of its own: slot k says that it has k + 1 lanes, and takes
// the port of its last lane, which no other slot takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "flows.hpp"
#include "member.hpp"
#include "path_client/client.hpp"
#include "path_client/mailbox.hpp"

namespace paralet::pin {

class ServicePorts {
 public:
  static constexpr Nanos kPatience = 1 * kSecond;

  /// `wake` is called from any thread when there may be something new.
  ServicePorts(path_client::Options options, std::function<void()> wake)
      : options_(std::move(options)), wake_(std::move(wake)) {}

  /// Connects for the first TCP connections from these addresses, so that these need not wait for it.
  void connect(const std::vector<IpAddress>& addresses);
  /// A program at these addresses is a rank of a job, until `leave`. By a client of its own, since a host has several.
  void join(const Member& member, const std::vector<IpAddress>& addresses);
  void leave(const Member& member);
  /// Throws DeviceError when the process may start no more threads.
  void tell(const Flows::News& news);
  /// A flow that was announced has the port that it keeps.
  void begun(const KnownFlow& flow);
  /// Takes the newest assignments. Where they tell of other ports than before: a course and its slot, where no flow may
  /// be any more.
  std::vector<std::pair<Course, Slot>> take();

  /// What the service says of a flow that was announced: nothing yet, no port (0), or a port.
  [[nodiscard]] std::optional<std::uint16_t> port(const KnownFlow& flow) const;
  /// The path of that port; empty where the service does not say.
  [[nodiscard]] path_client::Path path(const KnownFlow& flow) const;
  /// Whether that path is one that this host has probed. A connection that is open cannot be probed again.
  [[nodiscard]] bool measures(const KnownFlow& flow) const;
  /// Whether no client is connected, and one of them has tried in vain for `kPatience`.
  [[nodiscard]] bool away(Nanos now) const;
  [[nodiscard]] std::size_t clients() const { return clients_.size(); }
  [[nodiscard]] std::size_t connected() const;

 private:
  struct Client {
    path_client::Mailbox mailbox;
    std::shared_ptr<const path_client::Assignments> now;
    std::uint64_t taken = 0;                    ///< the highest serial number in `now`
    std::optional<path_client::Client> client;  ///< last, so that it is destroyed first
  };
  using Key = std::tuple<bool, IpAddress, Slot>;

  /// The answer to a flow that was announced; nullptr: none yet.
  [[nodiscard]] const path_client::PeerPaths* answer(const KnownFlow& flow) const;
  [[nodiscard]] static Key key(const KnownFlow& flow) { return {flow.course.tcp, flow.course.local, flow.slot}; }
  [[nodiscard]] path_client::Hello hello(const Key& key) const;
  Client& client(const Key& key);

  path_client::Options options_;
  std::function<void()> wake_;
  std::map<Key, Client> clients_;
  std::map<std::pair<Member, IpAddress>, Client> members_;  ///< which only tell that they are there
};

}  // namespace paralet::pin
