// SPDX-License-Identifier: Apache-2.0
#include "devices.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <optional>
#include <set>
#include <string_view>

#include "settings/interface_choice.hpp"

namespace paralet::plugin {
namespace {

namespace fs = std::filesystem;

/// The first line of a file in /sys, empty when there is none.
std::string read_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

std::optional<long> read_number(const fs::path& file) {
  const std::string line = read_line(file);
  char* end = nullptr;
  const long value = std::strtol(line.c_str(), &end, 10);
  return end != line.c_str() ? std::optional(value) : std::nullopt;
}

/// Whether a directory of /sys is a PCI device, as in 0000:3b:00.1; domains may be longer.
bool is_pci_address(std::string_view name) {
  constexpr std::string_view kPattern = "xxxx:xx:xx.x";
  if (name.size() < kPattern.size()) return false;
  const auto matches = [](char c, char p) {
    return p == 'x' ? std::isxdigit(static_cast<unsigned char>(c)) != 0 : c == p;
  };
  const std::string_view tail = name.substr(name.size() - kPattern.size());
  const std::string_view head = name.substr(0, name.size() - kPattern.size());
  return std::equal(tail.begin(), tail.end(), kPattern.begin(), matches) &&
         std::ranges::all_of(head, [&](char c) { return matches(c, 'x'); });
}

/// The PCI device of an interface. For a virtio NIC it is the parent of `device`.
std::string pci_path(const fs::path& device) {
  std::error_code error;
  fs::path path = fs::canonical(device, error);
  if (error) return {};
  while (path.has_relative_path() && !is_pci_address(path.filename().native())) path = path.parent_path();
  return path.has_relative_path() ? path.string() : std::string();
}

std::string host_name() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return host.data();
}

class Fnv1a {
 public:
  void add(std::string_view bytes) {
    for (const char c : bytes) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  }
  [[nodiscard]] std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xCBF29CE484222325;
};

/// The same for all ports of a chip: NCCL tells by it that ports share one. An RDMA NIC has an id, as
/// b83f:d203:00ab:cdef; for others it is made of the host's name and the PCI device without its function. Nothing
/// without either.
std::optional<std::uint64_t> chip_guid(const fs::path& device, const std::string& pci_path) {
  std::error_code error;
  for (const auto& rdma : fs::directory_iterator(device / "infiniband", error)) {
    std::string digits = read_line(rdma.path() / "sys_image_guid");
    std::erase(digits, ':');
    const std::uint64_t value = std::strtoull(digits.c_str(), nullptr, 16);
    if (value != 0) return value;
  }
  if (pci_path.empty()) return std::nullopt;
  Fnv1a hash;
  hash.add(host_name());
  hash.add(std::string_view(pci_path).substr(0, pci_path.rfind('.')));
  return hash.value();
}

}  // namespace

const char* forever(const std::string& text) {
  static auto* texts = new std::set<std::string>;  // NOLINT(cppcoreguidelines-owning-memory): never destroyed
  return texts->insert(text).first->c_str();
}

NicFacts nic_facts(const Interface& interface, const fs::path& sys) {
  const fs::path folder = sys / settings::without_label(interface.name);
  NicFacts facts;
  facts.pci_path = pci_path(folder / "device");
  const auto speed = read_number(folder / "speed");  // -1 when there is no carrier
  facts.speed_mbps = speed && *speed > 0 && *speed <= INT32_MAX ? static_cast<int>(*speed) : kUnknownSpeed;
  const auto port = read_number(folder / "dev_port");
  facts.port = port && *port > 0 && *port <= UINT16_MAX ? static_cast<int>(*port) : 0;
  if (const auto chip = chip_guid(folder / "device", facts.pci_path)) {
    facts.guid = *chip;
    return facts;
  }
  const std::string mac = read_line(folder / "address");
  Fnv1a hash;
  hash.add(mac);
  if (mac.find_first_not_of("0:") == std::string::npos) {  // loopback has no MAC: the host name distinguishes hosts
    hash.add(host_name());
  }
  hash.add(format_address(interface.address));
  facts.guid = hash.value();
  return facts;
}

std::vector<RailPlane> rails_of(const Rails& rails, const std::vector<std::string>& interfaces,
                                const std::vector<std::string>& pci_paths) {
  std::vector<RailPlane> out(interfaces.size());
  for (std::size_t i = 0; i < interfaces.size(); ++i) {
    if (const auto named = rails.named.find(settings::without_label(interfaces[i])); named != rails.named.end()) {
      out[i] = named->second;
    }
  }
  if (!rails.by_position || interfaces.size() < 2) return out;
  // Domains may have more than four digits, so shorter addresses come first.
  std::vector<std::pair<std::size_t, std::string>> addresses;
  for (const std::string& path : pci_paths) {
    if (path.empty()) return out;
    const std::string address = fs::path(path).filename();
    addresses.emplace_back(address.size(), address);
  }
  const std::set ordered(addresses.begin(), addresses.end());
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i].rail = static_cast<std::int16_t>(std::distance(ordered.begin(), ordered.find(addresses[i])));
  }
  return out;
}

bool peer_memory(const fs::path& sys) {
  std::error_code error;
  return std::ranges::any_of(
      std::array{"module/nvidia_peermem", "kernel/mm/memory_peers/nv_mem", "kernel/mm/memory_peers/nv_mem_nc"},
      [&](const char* module) { return fs::exists(sys / module / "version", error); });
}

std::string describe(const std::vector<Interface>& interfaces) {
  std::string out;
  for (const Interface& i : interfaces) {
    out += (out.empty() ? "" : ", ") + i.name + " " + format_address(i.address) + (i.up ? "" : " (down)");
  }
  return out;
}

}  // namespace paralet::plugin
