// SPDX-License-Identifier: Apache-2.0
#include "verbs/port.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "base/interfaces.hpp"

namespace paralet {
namespace verbs {
namespace {

/// The address of a GID.
IpAddress address_of(const ibv_gid& gid) {
  IpAddress::Bytes bytes{};
  std::memcpy(bytes.data(), gid.raw, bytes.size());
  return IpAddress(bytes);
}

/// The RoCEv2 GIDs of all ports of a device.
std::vector<ibv_gid_entry> gid_table(ibv_context* context) {
  std::vector<ibv_gid_entry> entries(1024);
  const ssize_t count =
      VerbsLibrary::load().query_gid_table(context, entries.data(), entries.size(), 0, sizeof(ibv_gid_entry));
  entries.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  std::erase_if(entries, [](const ibv_gid_entry& e) { return e.gid_type != IBV_GID_TYPE_ROCE_V2; });
  return entries;
}

/// Calls `visit(name, context handle)` for every device that opens, until it returns true.
template <typename Visit>
void for_devices(Visit visit) {
  const VerbsLibrary& library = VerbsLibrary::load();
  int count = 0;
  const auto free_list = [&](ibv_device** list) { library.free_device_list(list); };
  const std::unique_ptr<ibv_device*, decltype(free_list)> list(library.get_device_list(&count), free_list);
  for (int i = 0; i < count; ++i) {
    ibv_device* device = list.get()[i];
    ContextHandle context(library.open_device(device));
    if (context && visit(library.get_device_name(device), std::move(context))) return;
  }
}

/// Whether dma-bufs can be registered. This is NCCL's own test: a driver that supports them rejects the descriptor -1.
bool takes_dmabuf(ibv_context* context) {
  const VerbsLibrary& library = VerbsLibrary::load();
  if (library.reg_dmabuf_mr == nullptr) return false;
  const PdHandle pd(library.alloc_pd(context));
  if (!pd) return false;
  errno = 0;
  const MrHandle mr(library.reg_dmabuf_mr(pd.get(), 0, 0, 0, -1, 0));
  return errno != EOPNOTSUPP && errno != EPROTONOSUPPORT;
}

/// A port whose link layer is InfiniBand, as "port 1 of mlx5_0", empty without one. `only`: of this device.
std::string infiniband_port(const std::string& only) {
  std::string out;
  for_devices([&](const std::string& name, const ContextHandle& context) {
    if (!only.empty() && only != name) return false;
    ibv_device_attr device{};
    if (VerbsLibrary::load().query_device(context.get(), &device) != 0) return false;
    for (unsigned number = 1; number <= device.phys_port_cnt; ++number) {
      const auto port = query_port(context.get(), static_cast<std::uint8_t>(number));
      if (!port || port->common.link_layer != IBV_LINK_LAYER_INFINIBAND) continue;
      out = "port " + std::to_string(number) + " of " + name;
      return true;
    }
    return false;
  });
  return out;
}

}  // namespace

void fail(const std::string& what, int error) { throw DeviceError(what + ": " + std::strerror(error)); }

std::uint32_t bytes_of(ibv_mtu mtu) { return 128U << static_cast<unsigned>(mtu); }
ibv_mtu mtu_of(std::uint32_t bytes) { return static_cast<ibv_mtu>(std::countr_zero(bytes) - 7); }

std::optional<PortAttributes> query_port(ibv_context* context, std::uint8_t number) {
  // rdma-core 49 appended active_speed_ex to ibv_port_attr. The header that this is built with may be older, the loaded
  // library too: it clears the bytes that it does not know.
  constexpr std::size_t kSpeedOffset = 52;
  static_assert(offsetof(ibv_port_attr, port_cap_flags2) + 4 == kSpeedOffset);
  alignas(ibv_port_attr) std::array<std::byte, kSpeedOffset + sizeof(std::uint32_t)> bytes{};
  auto* const attributes = reinterpret_cast<ibv_port_attr*>(bytes.data());
  // The context grows at its beginning (verbs_get_ctx_op in infiniband/verbs.h).
  const verbs_context* const extended = verbs_get_ctx(context);
  const bool sized = extended != nullptr &&
                     extended->sz >= sizeof(verbs_context) - offsetof(verbs_context, query_port) &&
                     extended->query_port != nullptr;
  const int error = sized ? extended->query_port(context, number, attributes, bytes.size())
                          : VerbsLibrary::load().query_port(context, number, attributes);
  if (error != 0) {
    errno = error;
    return std::nullopt;
  }
  PortAttributes out;
  std::memcpy(&out.common, bytes.data(), std::min(sizeof out.common, bytes.size()));
  std::memcpy(&out.speed, bytes.data() + kSpeedOffset, sizeof out.speed);
  if (out.speed == 0) out.speed = out.common.active_speed;
  return out;
}

double link_rate_bps(std::uint8_t width, std::uint32_t speed) {
  static constexpr std::array<std::pair<unsigned, double>, 5> kLanes{{{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}}};
  // SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR, XDR
  static constexpr std::array<std::pair<unsigned, double>, 9> kGigabits{
      {{1, 2.5}, {2, 5}, {4, 10}, {8, 10}, {16, 14}, {32, 25}, {64, 50}, {128, 100}, {256, 200}}};
  const auto lanes = std::ranges::find(kLanes, unsigned{width}, &std::pair<unsigned, double>::first);
  const auto gigabits = std::ranges::find(kGigabits, speed, &std::pair<unsigned, double>::first);
  return lanes == kLanes.end() || gigabits == kGigabits.end() ? 0 : lanes->second * gigabits->second * 1e9;
}

ibv_gid gid_of(const IpAddress& address) {
  ibv_gid gid{};
  std::memcpy(gid.raw, address.bytes().data(), sizeof gid.raw);
  return gid;
}

OpenPort open_port(const VerbsOptions& options) {
  OpenPort out;
  for_devices([&](const std::string& name, ContextHandle context) {
    if (!options.device.empty() && options.device != name) return false;
    const std::vector<ibv_gid_entry> gids = gid_table(context.get());
    const auto ours = std::ranges::find_if(
        gids, [&](const ibv_gid_entry& entry) { return address_of(entry.gid) == options.address; });
    if (ours == gids.end()) return false;
    const std::uint32_t index = options.gid_index.value_or(ours->gid_index);
    const auto chosen = std::ranges::find_if(
        gids, [&](const ibv_gid_entry& entry) { return entry.port_num == ours->port_num && entry.gid_index == index; });
    if (chosen == gids.end() || index > UINT8_MAX) {
      throw DeviceError("GID index " + std::to_string(index) + " of " + name + ", which has " +
                        format_address(options.address) + ", is not a RoCEv2 GID: `paralet doctor` lists them");
    }
    out = {name, std::move(context), static_cast<std::uint8_t>(ours->port_num), index, chosen->gid};
    return true;
  });
  if (!out.context) {
    if (const std::string name = infiniband_port(options.device); !name.empty()) {
      throw DeviceError("no RDMA device has a RoCEv2 GID for " + format_address(options.address) + "; " + name +
                        " has InfiniBand as its link layer, and this transport needs Ethernet (RoCEv2)");
    }
    throw DeviceError(
        "no RDMA device " + (options.device.empty() ? "" : options.device + " ") + "has a RoCEv2 GID for " +
        format_address(options.address) +
        " (list them with: paralet doctor; add SoftRoCE with: rdma link add NAME type rxe netdev NETDEV)");
  }
  return out;
}

}  // namespace verbs

std::vector<VerbsPort> verbs_ports() {
  std::vector<VerbsPort> out;
  verbs::for_devices([&](const std::string& name, const ContextHandle& context) {
    const bool dmabuf = verbs::takes_dmabuf(context.get());
    for (const ibv_gid_entry& entry : verbs::gid_table(context.get())) {
      const IpAddress address = verbs::address_of(entry.gid);
      const auto port = verbs::query_port(context.get(), static_cast<std::uint8_t>(entry.port_num));
      if (address.is_link_local() || !port) continue;
      out.push_back({.device = name,
                     .port = entry.port_num,
                     .active = port->common.state == IBV_PORT_ACTIVE,
                     .path_mtu = verbs::bytes_of(port->common.active_mtu),
                     .gid_index = entry.gid_index,
                     .address = address,
                     .dmabuf = dmabuf});
    }
    return false;
  });
  return out;
}

}  // namespace paralet
