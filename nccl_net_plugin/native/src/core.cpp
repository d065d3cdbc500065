// SPDX-License-Identifier: Apache-2.0
#include "core.hpp"

#include <algorithm>
#include <atomic>

#include "base/build.hpp"
#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "base/random.hpp"
#include "fusion.hpp"
#include "log.hpp"
#include "plugin_error.hpp"
#include "soft/udp_sockets.hpp"
#include "verbs/verbs_backend.hpp"
#include "wire/wire.hpp"

namespace paralet::plugin {
namespace {

// QPs for all peers that a communicator uses at once, where the user has not chosen m: m QPs per peer times hundreds of
// peers would not fit the caches of NICs.
constexpr unsigned kLaneBudget = 256;
constexpr unsigned kLeastLanes = 2;  // with one lane a peer would have one path

void check_traffic_class(int traffic_class) {
  if (traffic_class == NCCL_NET_TRAFFIC_CLASS_UNDEF || (traffic_class >= 0 && traffic_class <= UINT8_MAX)) return;
  throw PluginError(ncclInvalidArgument, "the communicator's trafficClass " + std::to_string(traffic_class) +
                                             " is not allowed: it must be 0 to 255, the IPv4 TOS byte");
}

/// The line rate of a NIC, where the user has set one: the plugin sends no faster.
std::optional<int> line_rate_mbps(const DeviceOptions& options) {
  if (options.line_rate_bps <= 0) return std::nullopt;
  return static_cast<int>(std::clamp(options.line_rate_bps / 1e6, 1.0, static_cast<double>(INT32_MAX)));
}

std::string speed_text(int mbps) {
  return mbps % 1000 == 0 ? std::to_string(mbps / 1000) + " Gbit/s" : std::to_string(mbps) + " Mbit/s";
}

/// The interfaces whose address is that of an RDMA port that is up.
std::vector<Interface> rdma_interfaces(const std::vector<Interface>& all, const std::vector<VerbsPort>& ports) {
  std::vector<Interface> out;
  std::ranges::copy_if(all, std::back_inserter(out), [&](const Interface& interface) {
    return std::ranges::any_of(ports, [&](const auto& p) { return p.active && p.address == interface.address; });
  });
  return out;
}

/// NCCL_PTR_* bits of a device. Only RDMA NICs register GPU memory.
int pointer_support(const Interface& interface, const std::vector<VerbsPort>& ports) {
  int support = NCCL_PTR_HOST;
  for (const VerbsPort& port : ports) {
    if (!port.active || port.address != interface.address) continue;
    if (peer_memory()) support |= NCCL_PTR_CUDA;
    if (port.dmabuf) support |= NCCL_PTR_DMABUF;
  }
  return support;
}

/// One sentence that says why no interface was chosen.
std::string no_device(const std::vector<Interface>& all, const Settings& settings) {
  const bool verbs = settings.device.backend == BackendKind::kVerbs;
  const std::string machine = std::string(verbs ? "; interfaces with an RDMA device: " : "; this machine has: ") +
                              (all.empty() ? "none" : describe(all));
  for (const IpAddress& address : settings.selection.addresses) {
    if (!settings::select(all, {.names = {}, .addresses = {address}}).empty()) continue;
    return "no usable device: no interface that is up has the address " + format_address(address) + " (" +
           settings.selected_by + ")" + machine;
  }
  return "no usable device: no interface that is up and has an IP address was selected (" + settings.selected_by + ")" +
         machine;
}

/// Throws PluginError when no interface can be a device.
std::vector<Interface> find_interfaces(const Settings& settings, const std::vector<VerbsPort>& ports) {
  const bool verbs = settings.device.backend == BackendKind::kVerbs;
  const std::vector<Interface> all = verbs ? rdma_interfaces(interfaces(), ports) : interfaces();
  auto chosen = settings::select(all, settings.selection);
  if (chosen.empty()) throw PluginError(ncclSystemError, no_device(all, settings));
  for (const Interface& interface : chosen) {
    const std::string others = settings::other_addresses(all, interface);
    if (!others.empty() && settings.selection.addresses.empty()) {
      log_info(interface.name + " is used with " + format_address(interface.address) + ", not with " + others +
               ": PARALET_ADDRESSES chooses others");
    }
    const std::uint32_t largest = wire::largest_path_mtu(interface.mtu_bytes);
    if (settings.device.path_mtu.value_or(0) <= largest) continue;
    throw PluginError(ncclInvalidUsage, "PARALET_PATH_MTU='" + std::to_string(*settings.device.path_mtu) +
                                            "' is not allowed: it must be at most " + std::to_string(largest) +
                                            " for " + interface.name + ", whose MTU is " +
                                            std::to_string(interface.mtu_bytes));
  }
  return chosen;
}

}  // namespace

Core& Core::instance() {
  static std::atomic<Core*> current{new Core};
  Core* core = current.load(std::memory_order_acquire);
  if (!core->owner_.inherited()) return *core;
  // A forked child begins anew: threads of its parent may have been changing the parent's.
  auto own = std::unique_ptr<Core>(new Core);
  if (current.compare_exchange_strong(core, own.get())) return *own.release();
  return *core;
}

// -- users of the plugin ------------------------------------------------------------------------------------------

void* Core::open_context(ncclDebugLogger_t logger, int traffic_class) {
  const std::lock_guard lock(mutex_);
  set_logger(logger);
  check_traffic_class(traffic_class);
  start(logger);
  return contexts_.emplace_back(std::make_unique<Context>(Context{.traffic_class = traffic_class})).get();
}

void Core::expect_peers(void* context, int peers) {
  const std::lock_guard lock(mutex_);
  for (const auto& open : contexts_) {
    if (open.get() == context) open->peers = std::max(peers, 1);
  }
}

/// A user's settings, the defaults for nullptr. Called with the lock held.
Core::Context Core::context_of(void* context) {
  if (context == nullptr) return {};
  for (const auto& open : contexts_) {
    if (open.get() == context) return *open;
  }
  throw PluginError(ncclInvalidArgument, "the context is not open: init has not returned it, or finalize has ended it");
}

void Core::open_forever(ncclDebugLogger_t logger) {
  const std::lock_guard lock(mutex_);
  start(logger);
  forever_ = true;
}

void Core::close_context(void* context) {
  std::vector<Nic> closing;
  {
    const std::lock_guard lock(mutex_);
    if (std::erase_if(contexts_, [context](const auto& open) { return open.get() == context; }) == 0) {
      throw PluginError(ncclInvalidArgument, "finalize was called with a context that is not open");
    }
    if (!contexts_.empty() || forever_) return;
    pending_.clear();
    closing.swap(nics_);
  }
  for (const Nic& nic : closing) {
    for (const auto& [traffic_class, device] : nic.devices) device->close();
  }
}

/// Called with the lock held. Does nothing when the plugin is running.
void Core::start(ncclDebugLogger_t logger) {
  set_logger(logger);
  if (!nics_.empty()) return;
  settings_ = load_settings(process_environment());
  settings_.device.log = [](const std::string& sentence) { log_warning(sentence); };
  settings_.device.policy.path_client.log = settings_.device.log;
  for (const std::string& sentence : settings_.advice) log_warning(sentence);
  std::vector<VerbsPort> ports;
  if (settings_.device.backend == BackendKind::kVerbs) ports = verbs_ports();
  std::vector<Nic> nics;
  std::vector<std::string> names;
  std::vector<std::string> paths;
  for (const Interface& interface : find_interfaces(settings_, ports)) {
    const NicFacts facts = nic_facts(interface);
    nics.push_back({.interfaces = {interface},
                    .properties = {.name = forever(interface.name),
                                   .pci_path = facts.pci_path.empty() ? nullptr : forever(facts.pci_path),
                                   .guid = facts.guid,
                                   .pointers = pointer_support(interface, ports),
                                   .speed_mbps = line_rate_mbps(settings_.device).value_or(facts.speed_mbps),
                                   .port = facts.port,
                                   .place = {},
                                   .members = {}},
                    .devices = {}});
    names.push_back(interface.name);
    paths.push_back(facts.pci_path);
  }
  const std::vector<RailPlane> places = rails_of(settings_.rails, names, paths);
  for (std::size_t i = 0; i < nics.size(); ++i) nics[i].properties.place = places[i];
  nics_ = std::move(nics);
  if (!settings_.backend_choice.empty()) log_info(settings_.backend_choice);
  log_banner();
  restore_fused();
  just_started_ = true;
  if (settings_.device.backend != BackendKind::kSoft) return;
  if (const std::size_t granted = granted_receive_buffer(); granted < kSocketBufferBytes) {
    log_warning("the kernel grants " + std::to_string(granted / 1024) +
                " KiB of UDP receive buffer, so longer bursts are lost and retransmitted: raise the limit with "
                "`sysctl -w net.core.rmem_max=" +
                std::to_string(kSocketBufferBytes) + "`");
  }
}

void Core::log_banner() const {
  std::string text = std::string("paralet ") + build_version() + " (" + build_commit() + "), back end " +
                     to_string(settings_.device.backend) + ", m = " + std::to_string(settings_.device.policy.lanes) +
                     " lanes, policy " + to_string(settings_.device.policy.kind) + ", " + std::to_string(nics_.size()) +
                     (nics_.size() == 1 ? " device" : " devices") + " by " + settings_.selected_by + ":";
  for (std::size_t i = 0; i < nics_.size(); ++i) {
    const Interface& interface = nics_[i].interfaces.front();
    const std::uint32_t mtu =
        settings_.device.path_mtu.value_or(wire::largest_path_mtu(interface.mtu_bytes, !interface.address.is_ipv4()));
    text += " [" + std::to_string(i) + "] " + interface.name + " " + format_address(interface.address) + " " +
            speed_text(nics_[i].properties.speed_mbps) + " path MTU " + std::to_string(mtu);
    if (const RailPlane& place = nics_[i].properties.place; place.rail >= 0) {
      text += " rail " + std::to_string(place.rail);
      if (place.plane >= 0) text += " plane " + std::to_string(place.plane);
    }
  }
  log_info(text);
}

// -- devices -----------------------------------------------------------------------------------------------------

void Core::check_running() const {
  if (nics_.empty())
    throw PluginError(ncclInvalidUsage, "the plugin was called before init or after the last finalize");
}

Core::Nic& Core::nic(int device) {
  check_running();
  if (device < 0 || static_cast<std::size_t>(device) >= nics_.size()) {
    throw PluginError(ncclInvalidArgument, "device " + std::to_string(device) + " does not exist: the plugin has " +
                                               std::to_string(nics_.size()) + " devices, numbered from 0");
  }
  just_started_ = false;
  return nics_[static_cast<std::size_t>(device)];
}

int Core::devices() {
  const std::lock_guard lock(mutex_);
  check_running();
  if (std::exchange(just_started_, false)) {
    fusions_.clear();
    std::erase_if(nics_, [](const Nic& nic) { return !nic.properties.members.empty(); });
  }
  return static_cast<int>(nics_.size());
}

DeviceProperties Core::properties(int device) {
  const std::lock_guard lock(mutex_);
  return nic(device).properties;
}

/// Called with the lock held.
Core::Nic Core::fused(std::span<const int> members) const {
  std::vector<DeviceProperties> all;
  all.reserve(nics_.size());
  for (const Nic& nic : nics_) all.push_back(nic.properties);
  Nic out{.interfaces = {}, .properties = fuse(all, members, settings_.topology), .devices = {}};
  for (const int member : members) {
    out.interfaces.push_back(nics_[static_cast<std::size_t>(member)].interfaces.front());
  }
  check_device(options_of(out));
  return out;
}

/// Makes the devices again that NCCL had made before the last finalize. Called with the lock held.
void Core::restore_fused() {
  const std::size_t single = nics_.size();
  try {
    for (const std::vector<int>& members : fusions_) nics_.push_back(fused(members));
  } catch (const PluginError&) {  // the machine or the parameters are others now
    nics_.resize(single);
    fusions_.clear();
  }
}

int Core::make_fused(std::span<const int> members) {
  const std::lock_guard lock(mutex_);
  check_running();
  just_started_ = false;
  const Nic& made = nics_.emplace_back(fused(members));
  fusions_.emplace_back(members.begin(), members.end());
  log_info("device [" + std::to_string(nics_.size() - 1) + "] " + made.properties.name + " fuses " +
           std::to_string(members.size()) + " NICs to " + speed_text(made.properties.speed_mbps));
  return static_cast<int>(nics_.size()) - 1;
}

int Core::pointers(const Device& device) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(nics_, [&](const Nic& nic) {
    return std::ranges::any_of(nic.devices, [&](const auto& entry) { return entry.second.get() == &device; });
  });
  return found != nics_.end() ? found->properties.pointers : 0;
}

/// The settings for a device. A line rate is that of one NIC.
DeviceOptions Core::options_of(const Nic& nic) const {
  DeviceOptions out = settings_.device;
  out.address = nic.interfaces.front().address;
  for (const Interface& further : std::span(nic.interfaces).subspan(1)) out.fused_with.push_back(further.address);
  out.line_rate_bps *= static_cast<double>(nic.interfaces.size());
  return out;
}

/// The engine's device, opened on the NIC's first use: a process usually uses one NIC of many, and the first process
/// that opens a NIC on a machine gets UDP port 4791 there. All connections of a device share its QPs, whose packets
/// have one traffic class, so each class is a device of its own. Called with the lock held.
std::shared_ptr<Device> Core::open(int device, int traffic_class) {
  Nic& chosen = nic(device);
  DeviceOptions options = options_of(chosen);
  if (traffic_class != NCCL_NET_TRAFFIC_CLASS_UNDEF) options.traffic_class = static_cast<std::uint8_t>(traffic_class);
  if (const auto known = chosen.devices.find(options.traffic_class); known != chosen.devices.end()) {
    return known->second;
  }
  auto opened = std::shared_ptr<Device>(new Device(options), DeleteInOwner{});
  chosen.devices.emplace(options.traffic_class, opened);
  for (const DeviceNic& each : opened->nics()) {
    const std::string text =
        each.interface + " " + format_address(each.address) + " receives on " +
        (each.transport == Transport::kTcp ? "TCP port " : "UDP port ") + std::to_string(each.udp_port) +
        (options.traffic_class != 0 ? " with traffic class " + std::to_string(options.traffic_class) : "");
    if (each.udp_port == wire::kRocePort) {
      log_info(text);
    } else if (options.policy.kind == PolicyKind::kPinned) {
      log_warning(text + ", because " + std::to_string(wire::kRocePort) +
                  " is taken: switches hash flows to this port differently, so peers must choose PARALET_PORTS for it");
    } else {
      log_info(text + ", because " + std::to_string(wire::kRocePort) + " is taken");
    }
  }
  return opened;
}

// -- connections -------------------------------------------------------------------------------------------------

std::uint32_t Core::rkey_for(const Memory& memory, const std::shared_ptr<Device>& device) {
  if (memory.device == device) return memory.rkey;
  const DeviceOptions& registered = memory.device->options();
  const DeviceOptions& used = device->options();
  if (registered.address != used.address || registered.fused_with != used.fused_with) {
    throw PluginError(ncclInvalidArgument, "the message's memory was registered with another device");
  }
  if (memory.on_device) {
    throw PluginError(ncclInvalidArgument,
                      "GPU memory can be used only with the traffic class of the communicator that registered it");
  }
  return memories_.share(memory, device);
}

std::unique_ptr<ListenComm> Core::listen(void* context, int device) {
  std::shared_ptr<Device> opened;
  {
    const std::lock_guard lock(mutex_);
    opened = open(device, context_of(context).traffic_class);
  }
  return std::make_unique<ListenComm>(std::move(opened));
}

std::unique_ptr<DataComm> Core::connect(void* context, int device, HandleBytes handle, int traffic_class) {
  const Handle target = listener_handle(handle);
  Pending pending;
  std::uint64_t name = 0;
  if (const auto given = pending_connect(handle)) {
    const std::lock_guard lock(mutex_);
    if (const auto found = pending_.find(*given); found != pending_.end() && found->second.target == target) {
      name = *given;
      pending = found->second;
    }
  }
  if (!pending.connection) {
    pending.target = target;
    std::optional<unsigned> lanes;
    {
      const std::lock_guard lock(mutex_);
      check_traffic_class(traffic_class);
      const Context user = context_of(context);
      pending.device = open(device, context != nullptr ? user.traffic_class : traffic_class);
      if (!settings_.given.contains("PARALET_LANES")) {
        const auto nics = static_cast<unsigned>(pending.device->nics().size());
        lanes = std::max({kLeastLanes, nics, kLaneBudget / static_cast<unsigned>(user.peers)});
      }
    }
    pending.connection = pending.device->connect(target, lanes);
    while (name == 0) random_bytes(std::as_writable_bytes(std::span(&name, 1)));
    const std::lock_guard lock(mutex_);
    pending_.emplace(name, pending);
    set_pending_connect(handle, name);
  }
  const Connection::State state = pending.connection->state;
  if (state == Connection::State::kConnecting) return nullptr;
  {
    const std::lock_guard lock(mutex_);
    pending_.erase(name);
  }
  clear_pending_connect(handle);
  // A connection that the peer has closed in the meantime counts as open: its messages will fail.
  if (state != Connection::State::kOpen) {
    const bool local = pending.connection->failure == Failure::kDevice;
    throw PluginError(
        local ? ncclSystemError : ncclRemoteError,
        "connecting to " + format_address(pending.connection->peer_address) + " failed: " + pending.connection->error);
  }
  return std::make_unique<DataComm>(pending.device, pending.connection, DataComm::Direction::kSend);
}

std::unique_ptr<DataComm> Core::accept(ListenComm& listener) {
  auto connection = listener.accept();
  if (!connection && listener.device()->closed()) {
    throw PluginError(ncclInvalidUsage, "accept was called after the last finalize");
  }
  if (!connection) return nullptr;
  return std::make_unique<DataComm>(listener.device(), std::move(connection), DataComm::Direction::kReceive);
}

}  // namespace paralet::plugin
