// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/interfaces.hpp"
#include "settings/interface_choice.hpp"

namespace paralet::settings {
namespace {

Interface nic(const std::string& name, const std::string& address, bool up = true) {
  return {.name = name, .address = *parse_address(address), .mtu_bytes = 1500, .up = up};
}

const std::vector<Interface> kMachine = {
    nic("lo", "127.0.0.1"),     nic("eth0", "192.0.2.1"),  nic("docker0", "172.17.0.1"),    nic("eth1", "192.0.2.2"),
    nic("eth1:1", "192.0.2.3"), nic("eth10", "192.0.2.4"), nic("eth2", "192.0.2.5", false), nic("virbr0", "192.0.2.6"),
};

std::string chosen(const Selection& selection, const std::vector<Interface>& machine = kMachine) {
  std::string out;
  for (const Interface& i : select(machine, selection)) {
    out += (out.empty() ? "" : " ") + i.name + "=" + format_address(i.address);
  }
  return out;
}

Selection by(const std::string& names) { return {.names = NameFilter::parse(names), .addresses = {}}; }

TEST_CASE("no selection: all interfaces that are up except loopback and bridges, each once") {
  CHECK(chosen({}) == "eth0=192.0.2.1 eth1=192.0.2.2 eth10=192.0.2.4");
}

TEST_CASE("no selection and no physical interface: docker, then loopback, then bridges") {
  CHECK(chosen({}, {nic("lo", "127.0.0.1"), nic("docker0", "172.17.0.1")}) == "docker0=172.17.0.1");
  CHECK(chosen({}, {nic("virbr0", "192.0.2.6"), nic("lo", "127.0.0.1")}) == "lo=127.0.0.1");
  CHECK(chosen({}, {nic("virbr0", "192.0.2.6")}) == "virbr0=192.0.2.6");
  CHECK(chosen({}, {nic("eth0", "192.0.2.1", false)}).empty());
  CHECK(chosen({}, {}).empty());
}

TEST_CASE("names are prefixes, exact after =, excluded after ^, as in NCCL_SOCKET_IFNAME") {
  CHECK(chosen(by("eth1")) == "eth1=192.0.2.2 eth10=192.0.2.4");
  CHECK(chosen(by("=eth1")) == "eth1=192.0.2.2");
  CHECK(chosen(by("=eth10,=eth1")) == "eth10=192.0.2.4");  // one = applies to the whole list, as in NCCL
  CHECK(chosen(by("=eth10,eth1")) == "eth1=192.0.2.2 eth10=192.0.2.4");
  CHECK(chosen(by("^eth,docker,virbr")) == "lo=127.0.0.1");
  CHECK(chosen(by("^=eth1")) == "lo=127.0.0.1 eth0=192.0.2.1 docker0=172.17.0.1 eth10=192.0.2.4 virbr0=192.0.2.6");
  CHECK(chosen(by("eth0:2,lo")) == "lo=127.0.0.1 eth0=192.0.2.1");
  CHECK(chosen(by("eth2")).empty());
  CHECK(chosen(by("ib")).empty());
}

TEST_CASE("IPv6 addresses are chosen where no chosen interface has an IPv4 address") {
  const std::vector<Interface> machine = {nic("eth0", "192.0.2.1"), nic("eth0", "2001:db8::1"),
                                          nic("eth1", "2001:db8::2"), nic("eth1", "2001:db8::3")};
  CHECK(chosen({}, machine) == "eth0=192.0.2.1");
  CHECK(chosen(by("eth"), machine) == "eth0=192.0.2.1");
  CHECK(chosen(by("eth1"), machine) == "eth1=2001:db8::2");
  CHECK(chosen({.names = {}, .addresses = {*parse_address("2001:db8::3"), *parse_address("2001:db8::1")}}, machine) ==
        "eth1=2001:db8::3 eth0=2001:db8::1");
  CHECK(chosen({}, {nic("lo", "::1"), nic("eth0", "2001:db8::1")}) == "eth0=2001:db8::1");
}

TEST_CASE("of an interface's addresses the one that reaches farthest is chosen, of these the kernel's first") {
  const std::vector<Interface> machine = {nic("lo", "127.0.0.1"),     nic("lo", "10.8.0.1"),    nic("lo", "10.8.0.2"),
                                          nic("eth0", "169.254.3.4"), nic("eth0", "192.0.2.1"), nic("lo", "::1"),
                                          nic("eth0", "fd00::1")};
  CHECK(chosen(by("lo"), machine) == "lo=10.8.0.1");
  CHECK(chosen(by("eth0"), machine) == "eth0=192.0.2.1");
  CHECK(other_addresses(machine, select(machine, by("lo")).front()) == "127.0.0.1, 10.8.0.2, ::1");
  CHECK(other_addresses(machine, nic("eth1", "192.0.2.2")).empty());
  CHECK(chosen(by("lo"), {nic("lo", "127.0.0.1"), nic("lo", "::1")}) == "lo=127.0.0.1");
  CHECK(chosen(by("lo"), {nic("lo", "::1"), nic("lo", "fd00::1")}) == "lo=fd00::1");
  // A peer seldom reaches a link-local address: the other family is better.
  CHECK(chosen(by("eth0"), {nic("eth0", "169.254.3.4"), nic("eth0", "fd00::1")}) == "eth0=fd00::1");
  CHECK(chosen(by("eth"), {nic("eth0", "169.254.3.4"), nic("eth0", "fd00::1"), nic("eth1", "192.0.2.2")}) ==
        "eth0=169.254.3.4 eth1=192.0.2.2");
}

TEST_CASE("addresses of the family that is asked for are chosen") {
  const std::vector<Interface> machine = {nic("eth0", "192.0.2.1"), nic("eth1", "192.0.2.2"), nic("lo", "::1"),
                                          nic("eth0", "fd00::1"), nic("eth2", "fd00::2")};
  const auto of = [](std::optional<NameFilter> names, bool ipv4) {
    return Selection{.names = std::move(names), .ipv4 = ipv4};
  };
  CHECK(chosen(of({}, false), machine) == "eth0=fd00::1 eth2=fd00::2");
  CHECK(chosen(of({}, true), machine) == "eth0=192.0.2.1 eth1=192.0.2.2");
  CHECK(chosen(of(NameFilter::parse("eth1"), false), machine).empty());
  CHECK(chosen({.names = {}, .addresses = {*parse_address("192.0.2.1")}, .ipv4 = false}, machine) == "eth0=192.0.2.1");
}

TEST_CASE("addresses of the family that is preferred are chosen where an interface has one") {
  const std::vector<Interface> machine = {nic("eth0", "192.0.2.1"), nic("eth1", "192.0.2.2"), nic("lo", "::1"),
                                          nic("eth0", "fd00::1")};
  const auto of = [](const char* names, bool ipv4) {
    return Selection{.names = NameFilter::parse(names), .rather_ipv4 = ipv4};
  };
  CHECK(chosen({.names = {}, .rather_ipv4 = false}, machine) == "eth0=fd00::1");
  CHECK(chosen(of("eth", true), machine) == "eth0=192.0.2.1 eth1=192.0.2.2");
  CHECK(chosen(of("eth1", false), machine) == "eth1=192.0.2.2");
}

TEST_CASE("a list without names is not a filter") {
  for (const char* text : {"", ",", "^", "=", "^=", "^=,:1"}) {
    CAPTURE(text);
    CHECK_FALSE(NameFilter::parse(text).has_value());
  }
}

TEST_CASE("addresses are selected in the given order, including secondary ones and all of 127.0.0.0/8") {
  const auto addresses = [](std::initializer_list<const char*> texts) {
    Selection out;
    for (const char* text : texts) out.addresses.push_back(*parse_address(text));
    return out;
  };
  CHECK(chosen(addresses({"192.0.2.3", "192.0.2.1"})) == "eth1:1=192.0.2.3 eth0=192.0.2.1");
  CHECK(chosen(addresses({"127.0.0.1", "127.0.0.9"})) == "lo=127.0.0.1 lo=127.0.0.9");
  CHECK(chosen(addresses({"192.0.2.1", "192.0.2.99"})).empty());
  CHECK(chosen(addresses({"192.0.2.5"})).empty());
}

}  // namespace
}  // namespace paralet::settings
