// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/interfaces.hpp"
#include "path_client/session.hpp"

namespace paralet::path_client {
namespace {

using nlohmann::json;
using Verdict = Session::Verdict;
using Ports = std::vector<std::uint16_t>;

constexpr PeerName kSessionPeer = 0x0A000002;
constexpr PeerName kOther = 0x0A000003;
const Ports kPorts{50001, 50002};
const Ports kMore{51001, 51002};

/// A session, its messages and its tables.
struct Talk {
  Session session{Hello{.token = "t", .device = 0x0A000001, .instance = 1, .lanes = 2}, "job"};
  std::string out;
  std::shared_ptr<const Assignments> table = std::make_shared<const Assignments>();
  std::uint64_t generation = 0;
  Nanos now = kSecond;

  std::vector<json> said() {
    std::vector<json> messages;
    for (std::size_t begin = 0; begin < out.size();) {
      const std::size_t end = out.find('\n', begin);
      messages.push_back(json::parse(out.substr(begin, end - begin)));
      begin = end + 1;
    }
    out.clear();
    return messages;
  }
  std::vector<std::string> types() {
    std::vector<std::string> names;
    for (const json& message : said()) names.push_back(message["type"]);
    return names;
  }
  void event(const Event& e) { session.on_event(e, out); }
  Verdict receive(const json& message) {
    const Verdict verdict = session.on_line(message.dump(), now, out);
    update();
    return verdict;
  }
  bool update() {
    auto changes = session.take_changes();
    if (changes) table = std::move(changes);
    return changes != nullptr || table.use_count() > 0;
  }
  void welcome() {
    session.on_connected(out);
    REQUIRE(receive({{"type", "welcome"}, {"version", 1}}) == Verdict::kContinue);
  }
  void lose() {
    session.on_disconnected();
    generation = 0;
    update();
  }
  json assignment(PeerName peer, const Ports& ports, std::optional<std::uint64_t> id = {}) {
    json message{
        {"type", "assign"}, {"peer", format_address(peer.address)}, {"ports", ports}, {"generation", ++generation}};
    if (id) message["id"] = *id;
    return message;
  }
  Verdict assign(PeerName peer, const Ports& ports, std::optional<std::uint64_t> id = {}) {
    return receive(assignment(peer, ports, id));
  }
  [[nodiscard]] Ports ports(PeerName peer) const {
    const auto found = table->peers.find(peer);
    return found == table->peers.end() ? Ports{} : found->second.ports;
  }
  [[nodiscard]] std::uint64_t serial(PeerName peer) const { return table->peers.at(peer).serial; }
};

TEST_CASE("only hello is sent before the welcome, then every open elephant") {
  Talk talk;
  talk.event(Announce{.id = 1, .peer = kSessionPeer, .bytes = 10});
  CHECK(talk.said().empty());
  talk.session.on_connected(talk.out);
  CHECK(talk.types() == std::vector<std::string>{"hello"});
  talk.event(Announce{.id = 2, .peer = kOther, .bytes = 20});
  talk.event(Announce{.id = 3, .peer = PeerName(kOther.address.ipv4() + 1), .bytes = 20});
  talk.event(Release{.id = 3});
  talk.event(Report{.id = 1});
  CHECK(talk.said().empty());
  CHECK(talk.receive({{"type", "welcome"}, {"version", 1}}) == Verdict::kContinue);
  CHECK(talk.table->connected);
  const auto said = talk.said();
  REQUIRE(said.size() == 2);
  CHECK(said[0]["id"] == 1);
  CHECK(said[1]["id"] == 2);
  CHECK(said[0]["job"] == "job");
  talk.event(Release{.id = 1});
  CHECK(talk.types() == std::vector<std::string>{"release"});
  CHECK(talk.receive({{"type", "welcome"}, {"version", 1}}) == Verdict::kContinue);
  CHECK(talk.session.counters().invalid == 1);
}

TEST_CASE("a service that refuses the version hears the older one, and once more the newest after that connection") {
  Talk talk;
  const auto said_version = [&talk] {
    talk.session.on_connected(talk.out);
    return talk.said()[0]["version"].get<unsigned>();
  };
  const json refusal{{"type", "error"}, {"code", "version"}, {"text", "this service speaks version 1, not 2"}};
  CHECK(said_version() == 2);
  CHECK(talk.receive(refusal) == Verdict::kSayOlder);
  CHECK(talk.session.take_warning().empty());  // nothing is wrong
  talk.lose();
  CHECK(said_version() == 1);
  CHECK(talk.receive({{"type", "welcome"}, {"version", 2}}) == Verdict::kDrop);
  talk.lose();
  CHECK(said_version() == 1);
  CHECK(talk.receive({{"type", "welcome"}, {"version", 1}}) == Verdict::kContinue);
  CHECK(talk.session.welcome());
  talk.lose();
  CHECK(said_version() == 2);
  CHECK(talk.receive(refusal) == Verdict::kSayOlder);
  talk.lose();
  CHECK(said_version() == 1);
  CHECK(talk.receive(refusal) == Verdict::kDrop);  // it speaks neither
  CHECK(talk.session.take_warning() == "it says version: this service speaks version 1, not 2");
  talk.lose();
  CHECK(said_version() == 2);
}

TEST_CASE("asks for probes that were not offered are invalid") {
  Talk talk;
  talk.welcome();
  talk.said();
  const json ask{{"type", "probe"}, {"ask", 1}, {"peer", "10.0.0.2"}, {"ttl", 2}, {"ports", {50000}}};
  const json watch{{"type", "watch"}, {"peer", "10.0.0.2"}, {"ttl", 2}, {"period_s", 1}, {"ports", json::array()}};
  CHECK(talk.receive(ask) == Verdict::kContinue);
  CHECK(talk.receive(watch) == Verdict::kContinue);
  CHECK(talk.session.counters().invalid == 2);
  CHECK(talk.said().empty());
}

TEST_CASE("a host that has offered probes gets orders, and the QPNs and ports of lanes whenever they change") {
  Talk talk;
  talk.session.on_connected(talk.out);
  const json welcome{{"type", "welcome"}, {"version", 2}, {"probe", true}, {"router_rate", 2.5}};
  CHECK(talk.receive(welcome) == Verdict::kContinue);
  const auto wish = talk.session.take_wish();
  REQUIRE(wish);
  CHECK(wish->router_rate == 2.5);
  CHECK_FALSE(talk.session.take_wish());
  talk.said();
  talk.session.offer_probes(100, talk.out);
  CHECK(talk.said()[0] == json{{"type", "probe"}, {"rate", 100.0}, {"hops", true}, {"until", true}});
  const auto lanes_told = [&talk] {
    const auto orders = talk.session.take_orders();
    REQUIRE(orders.size() == 1);
    return std::get<PeerLanes>(orders[0]);
  };
  talk.event(LanesConnected{.peer = kSessionPeer, .first = 0, .qpns = {0x123456, 0x123457}});
  CHECK(lanes_told().qpns == std::vector<std::uint32_t>{0x123456, 0x123457});
  talk.assign(kSessionPeer, kPorts);
  CHECK(lanes_told().ports == kPorts);
  talk.event(LanesConnected{.peer = kSessionPeer, .first = 1, .qpns = {0x99}});  // its QP was replaced
  const PeerLanes lanes = lanes_told();
  CHECK(lanes.qpn_of(kPorts[0]) == 0x123456);
  CHECK(lanes.qpn_of(kPorts[1]) == 0x99);
  CHECK(lanes.qpn_of(kMore[0]) == 0x123456);  // of no lane
  CHECK(PeerLanes{}.qpn_of(kPorts[0]) == kSomeQpn);
  json ask{{"type", "probe"}, {"ask", 1}, {"peer", "10.0.0.2"}, {"ttl", 2}, {"ports", {50000}}};
  CHECK(talk.receive(ask) == Verdict::kContinue);
  ask["peer"] = "10.0.0.3";
  CHECK(talk.receive(ask) == Verdict::kContinue);
  const json watch{{"type", "watch"}, {"peer", "10.0.0.2"}, {"ttl", 2}, {"period_s", 1}, {"ports", json::array()}};
  CHECK(talk.receive(watch) == Verdict::kContinue);
  const auto orders = talk.session.take_orders();
  REQUIRE(orders.size() == 3);
  CHECK(std::get<ProbeAsk>(orders[0]).peer == kSessionPeer);
  CHECK(std::get<ProbeAsk>(orders[1]).peer == kOther);
  CHECK(std::get<Watch>(orders[2]).ports.empty());
  CHECK(talk.session.take_orders().empty());
  talk.lose();
  talk.session.on_connected(talk.out);
  CHECK(talk.receive(welcome) == Verdict::kContinue);
  talk.session.offer_probes(100, talk.out);
  CHECK(lanes_told().qpns == lanes.qpns);  // lanes outlive a connection to the service
  talk.lose();
  talk.welcome();  // by a service that does not ask for probes
  CHECK(talk.receive(ask) == Verdict::kContinue);
  CHECK(talk.session.take_orders().empty());
  CHECK(talk.session.counters().invalid == 1);
}

TEST_CASE("open elephants are announced once on each connection, and after probes where the service wants some") {
  Talk talk;
  talk.welcome();
  talk.event(Announce{.id = 1, .peer = kSessionPeer, .bytes = 10});
  talk.event(Announce{.id = 2, .peer = kOther, .bytes = 10});
  for (const bool probes : {true, false}) {
    talk.lose();
    talk.session.on_connected(talk.out);
    talk.said();
    CHECK(talk.receive({{"type", "welcome"}, {"version", 2}, {"probe", true}}) == Verdict::kContinue);
    REQUIRE(talk.session.take_wish());
    if (probes) talk.session.offer_probes(100, talk.out);
    talk.session.announce_open(talk.out);
    CHECK(talk.types() == (probes ? std::vector<std::string>{"probe", "announce", "announce"}
                                  : std::vector<std::string>{"announce", "announce"}));
    talk.event(Announce{.id = 1, .peer = kSessionPeer, .bytes = 20});
    CHECK(talk.types() == std::vector<std::string>{"announce"});
  }
}

TEST_CASE("an elephant's assignment takes precedence over one without an elephant") {
  Talk talk;
  talk.welcome();
  CHECK(talk.assign(kSessionPeer, kMore) == Verdict::kContinue);
  CHECK(talk.ports(kSessionPeer) == kMore);
  talk.event(Announce{.id = 1, .peer = kSessionPeer, .bytes = 10});
  CHECK(talk.ports(kSessionPeer) == kMore);  // until the announcement is answered
  talk.assign(kSessionPeer, kPorts, 1);
  CHECK(talk.ports(kSessionPeer) == kPorts);
  CHECK(talk.table->peers.at(kSessionPeer).answers == 1);
  talk.assign(kSessionPeer, kMore);
  CHECK(talk.ports(kSessionPeer) == kPorts);
  talk.event(Release{.id = 1});
  talk.update();
  CHECK(talk.ports(kSessionPeer) == kMore);
  talk.assign(kSessionPeer, {});
  CHECK(talk.ports(kSessionPeer).empty());
}

TEST_CASE("elephants with ports are counted once each, pushes are assignments that answer nothing") {
  Talk talk;
  talk.welcome();
  const auto counted = [&](std::uint64_t assigned, std::uint64_t pushes) {
    CHECK(talk.session.counters().assigned == assigned);
    CHECK(talk.session.counters().pushes == pushes);
  };
  talk.event(Announce{.id = 1, .peer = kSessionPeer, .bytes = 10});
  talk.assign(kSessionPeer, {}, 1);  // the service has no path for it
  counted(0, 0);
  talk.assign(kSessionPeer, kPorts, 1);
  counted(1, 1);
  talk.event(Announce{.id = 1, .peer = kSessionPeer, .bytes = 20});
  talk.assign(kSessionPeer, kPorts, 1);  // answers the announcement of its growth
  counted(1, 1);
  talk.assign(kOther, kMore);
  counted(1, 2);
  talk.lose();
  talk.welcome();
  talk.assign(kSessionPeer, kPorts, 1);  // the same elephant, on another connection
  counted(1, 2);
  CHECK(talk.session.counters().assigns == 5);
}

TEST_CASE("a cut path is reported with the serial of its assignment") {
  Talk talk;
  talk.welcome();
  talk.assign(kSessionPeer, kPorts);
  CHECK(talk.table->peers.at(kSessionPeer).cut_serial == 0);
  json cut = talk.assignment(kSessionPeer, kMore);
  cut["cut"] = true;
  CHECK(talk.receive(cut) == Verdict::kContinue);
  const auto serial = talk.serial(kSessionPeer);
  CHECK(talk.table->peers.at(kSessionPeer).cut_serial == serial);
  talk.assign(kSessionPeer, kPorts);
  CHECK(talk.serial(kSessionPeer) > serial);
  CHECK(talk.table->peers.at(kSessionPeer).cut_serial == serial);
}

TEST_CASE("after its elephant ends a peer keeps its ports, without a new serial number") {
  Talk talk;
  talk.welcome();
  talk.event(Announce{.id = 1, .peer = kSessionPeer, .bytes = 10});
  json limited = talk.assignment(kSessionPeer, kPorts, 1);
  limited["rate_bps"] = 1e6;
  limited["paths"] = {{"leaf1:5"}};
  talk.receive(limited);
  CHECK(talk.table->peers.at(kSessionPeer).rate_bps == 1e6);
  CHECK(talk.table->peers.at(kSessionPeer).paths == std::vector<Path>{{"leaf1:5"}});
  limited["rate_bps"] = 2e6;
  limited["paths"] = {{"leaf1:6"}};
  limited["generation"] = ++talk.generation;
  const std::uint64_t first = talk.serial(kSessionPeer);
  talk.receive(limited);
  CHECK(talk.serial(kSessionPeer) > first);  // also of a path that changes with the rate
  const std::uint64_t before = talk.serial(kSessionPeer);
  talk.event(Release{.id = 1});
  talk.assign(kOther, kMore);
  CHECK(talk.ports(kSessionPeer) == kPorts);
  CHECK(talk.serial(kSessionPeer) == before);
  CHECK(talk.table->peers.at(kSessionPeer).rate_bps == 0);
  CHECK(talk.table->peers.at(kSessionPeer).answers == 0);
  CHECK(talk.table->peers.at(kSessionPeer).paths.empty());
  // Assigning the same ports again increases the serial number.
  talk.event(Announce{.id = 2, .peer = kSessionPeer, .bytes = 10});
  talk.assign(kSessionPeer, kPorts, 2);
  CHECK(talk.serial(kSessionPeer) > before);
}

TEST_CASE("a new rate for the same ports does not change the serial number of the ports") {
  Talk talk;
  talk.welcome();
  talk.event(Announce{.id = 1, .peer = kSessionPeer, .bytes = 10});
  talk.assign(kSessionPeer, kPorts, 1);
  const PeerPaths first = talk.table->peers.at(kSessionPeer);
  for (const double rate : {1e6, 2e6}) {
    json limited = talk.assignment(kSessionPeer, kPorts, 1);
    limited["rate_bps"] = rate;
    talk.receive(limited);
    CHECK(talk.table->peers.at(kSessionPeer).rate_bps == rate);
    CHECK(talk.serial(kSessionPeer) == first.serial);
    CHECK(talk.table->peers.at(kSessionPeer).rate_serial > first.rate_serial);
  }
  json again = talk.assignment(kSessionPeer, kPorts, 1);
  again["rate_bps"] = 2e6;
  talk.receive(again);  // nothing changed, so it counts as an assignment of ports
  CHECK(talk.serial(kSessionPeer) > first.serial);
}

TEST_CASE("assignments of old generations and for ended elephants are stale") {
  Talk talk;
  talk.welcome();
  talk.generation = 9;
  talk.assign(kSessionPeer, kPorts);
  talk.generation = 5;
  talk.assign(kSessionPeer, kMore);
  CHECK(talk.ports(kSessionPeer) == kPorts);
  talk.generation = 9;  // an equal generation is not stale
  CHECK(talk.assign(kSessionPeer, kMore, 77) == Verdict::kContinue);
  CHECK(talk.ports(kSessionPeer) == kPorts);
  CHECK(talk.session.counters().stale == 2);
  talk.generation = 9;
  talk.assign(kSessionPeer, kMore);
  CHECK(talk.ports(kSessionPeer) == kMore);
  CHECK(talk.session.counters().invalid == 0);
}

TEST_CASE("an invalid message puts its peer on ECMP, and a fatal one ends the connection") {
  Talk talk;
  talk.welcome();
  talk.assign(kSessionPeer, kPorts);
  talk.assign(kOther, kPorts);
  json wrong = talk.assignment(kSessionPeer, kPorts);
  wrong["ports"] = {1};
  CHECK(talk.receive(wrong) == Verdict::kContinue);
  CHECK(talk.ports(kSessionPeer).empty());
  CHECK(talk.ports(kOther) == kPorts);
  talk.event(Announce{.id = 1, .peer = kSessionPeer, .bytes = 10});
  CHECK(talk.assign(kOther, kMore, 1) == Verdict::kContinue);  // an elephant to another peer
  CHECK(talk.ports(kOther).empty());
  CHECK(talk.session.counters().invalid == 2);
  CHECK(!talk.session.take_warning().empty());
  CHECK(talk.session.on_line("?", talk.now, talk.out) == Verdict::kDrop);
  CHECK(talk.session.take_warning() == "it sent a line that is not a JSON object");
}

TEST_CASE("the number of peers that a service may name is limited, even with empty assignments") {
  Talk talk;
  talk.welcome();
  const auto assign = [&talk](std::uint32_t peer) {
    const PeerName name(0x0B000000 + peer);
    return talk.session.on_line(talk.assignment(name, {}).dump(), talk.now, talk.out);
  };
  for (std::uint32_t peer = 0; peer < 65536; ++peer) REQUIRE(assign(peer) == Verdict::kContinue);
  CHECK(talk.session.counters().invalid == 0);
  CHECK(assign(65536) == Verdict::kContinue);
  CHECK(talk.session.take_warning() == "it sent assignments for more than 65536 peers");
  talk.update();
  CHECK(talk.table->peers.size() == 65536);
}

TEST_CASE("an assignment before the welcome is fatal") {
  Talk talk;
  talk.session.on_connected(talk.out);
  CHECK(talk.assign(kSessionPeer, kPorts) == Verdict::kDrop);
  CHECK(talk.ports(kSessionPeer).empty());
}

TEST_CASE("a service of a lower generation than was seen is refused, and one that names none is not") {
  Talk talk;
  const auto meet = [&talk](const json& generation) {
    talk.session.on_connected(talk.out);
    json welcome{{"type", "welcome"}, {"version", 1}};
    if (!generation.is_null()) welcome["generation"] = generation;
    const Verdict verdict = talk.receive(welcome);
    talk.lose();
    return verdict;
  };
  CHECK(meet(7) == Verdict::kContinue);
  CHECK(talk.said().back()["generation"] == 0);
  CHECK(meet(6) == Verdict::kDrop);
  CHECK(talk.said().back()["generation"] == 7);
  CHECK(talk.session.take_warning() == "it is of generation 6, and generation 7 has taken over from it");
  CHECK(talk.session.counters().invalid == 0);
  CHECK(meet(7) == Verdict::kContinue);
  CHECK(meet(nullptr) == Verdict::kContinue);
  CHECK(meet(-1) == Verdict::kDrop);
  CHECK(talk.session.counters().invalid == 1);
}

TEST_CASE("a host votes once for each generation, also after it has left") {
  Talk talk;
  const auto ask = [&talk](std::uint64_t generation, const char* service) {
    talk.session.on_connected(talk.out);
    talk.said();
    CHECK(talk.receive({{"type", "vote"}, {"generation", generation}, {"service", service}}) == Verdict::kContinue);
    const auto said = talk.said();
    talk.lose();
    return said.empty() ? json() : said.front();
  };
  const auto voted = [](std::uint64_t generation, const char* service) {
    return json{{"type", "voted"}, {"generation", generation}, {"service", service}};
  };
  CHECK(talk.receive({{"type", "vote"}, {"generation", 8}, {"service", "other"}, {"trial", true}}) ==
        Verdict::kContinue);
  CHECK(talk.said() ==
        std::vector{json({{"type", "voted"}, {"generation", 8}, {"service", "other"}, {"trial", true}})});
  CHECK(ask(8, "one") == voted(8, "one"));
  CHECK(talk.receive({{"type", "vote"}, {"generation", 8}, {"service", "other"}, {"trial", true}}) ==
        Verdict::kContinue);
  CHECK(talk.said() == std::vector{voted(8, "one")});
  CHECK(ask(8, "other") == voted(8, "one"));
  CHECK(ask(8, "one") == voted(8, "one"));
  CHECK(ask(7, "other") == voted(8, "one"));
  CHECK(ask(9, "other") == voted(9, "other"));
  talk.session.on_connected(talk.out);
  CHECK(talk.receive({{"type", "welcome"}, {"version", 1}, {"generation", 12}}) == Verdict::kContinue);
  talk.lose();
  CHECK(ask(12, "one") == voted(9, "other"));
  CHECK(ask(13, "one") == voted(13, "one"));
  talk.session.on_connected(talk.out);
  CHECK(talk.said().back()["voted"] == 13);
  CHECK(talk.receive({{"type", "vote"}, {"generation", 14}}) == Verdict::kContinue);
  CHECK(talk.session.counters().invalid == 1);
}

TEST_CASE("losing the connection voids all assignments, and open elephants are announced on the next one") {
  Talk talk;
  talk.welcome();
  talk.event(Announce{.id = 1, .peer = kSessionPeer, .bytes = 10});
  talk.assign(kSessionPeer, kPorts, 1);
  talk.assign(kOther, kMore);
  const std::uint64_t serial = talk.serial(kSessionPeer);
  const std::uint64_t connection = talk.table->connection;
  talk.lose();
  CHECK(!talk.table->connected);
  CHECK(talk.table->peers.empty());
  CHECK(talk.table->connection > connection);
  talk.said();
  talk.event(Announce{.id = 1, .peer = kSessionPeer, .bytes = 20});  // it grows while disconnected
  talk.welcome();
  const auto said = talk.said();
  REQUIRE(said.size() == 2);
  CHECK(said[1]["bytes"] == 20);
  talk.assign(kSessionPeer, kPorts, 1);  // generations start again, serial numbers do not
  CHECK(talk.ports(kSessionPeer) == kPorts);
  CHECK(talk.serial(kSessionPeer) > serial);
}

TEST_CASE("a host tells its program's rank, if it is known") {
  Talk talk;
  Hello hello{.token = "t", .device = 0x0A000001, .instance = 1, .lanes = 2, .job = "bert"};
  talk.session = Session(hello, "bert");
  talk.welcome();
  CHECK_FALSE(talk.said().at(0).contains("ranks"));
  hello.rank = {.rank = 3, .ranks = 8};
  talk.session = Session(hello, "bert");
  talk.welcome();
  const json said = talk.said().at(0);
  CHECK(said["job"] == "bert");
  CHECK(said["rank"] == 3);
  CHECK(said["ranks"] == 8);
}

TEST_CASE("an elephant that cannot change its port tells the one that it has begun with, also on the next connection") {
  Talk talk;
  talk.session =
      Session(Hello{.token = "t", .device = 0x0A000001, .instance = 1, .lanes = 2, .tcp = true, .fixed = true}, "job");
  talk.welcome();
  talk.event(Announce{.id = 7, .peer = kSessionPeer, .bytes = 0});
  talk.event(Announce{.id = 8, .peer = kOther, .bytes = 0});
  for (const json& message : talk.said()) CHECK_FALSE(message.contains("port"));
  talk.assign(kSessionPeer, kPorts, 7);
  talk.assign(kOther, {}, 8);
  talk.event(Begun{.id = 7, .port = kPorts[1]});
  CHECK(talk.said().empty());
  talk.event(Announce{.id = 7, .peer = kSessionPeer, .bytes = 500});
  talk.event(Announce{.id = 8, .peer = kOther, .bytes = 500});
  std::vector<json> said = talk.said();
  REQUIRE(said.size() == 2);
  CHECK(said[0]["port"] == kPorts[1]);
  CHECK_FALSE(said[1].contains("port"));
  talk.assign(kSessionPeer, kMore, 7);  // the plan has moved, the connection has not
  talk.lose();
  talk.welcome();
  said = talk.said();
  REQUIRE(said.size() == 3);
  CHECK(said[1]["id"] == 7);
  CHECK(said[1]["port"] == kPorts[1]);
  CHECK_FALSE(said[2].contains("port"));
  talk.assign(kSessionPeer, kMore, 7);
  talk.event(Announce{.id = 7, .peer = kSessionPeer, .bytes = 1000});
  CHECK(talk.said().back()["port"] == kPorts[1]);
}

TEST_CASE("an elephant that begins with a port of the connection before tells it at once") {
  Talk talk;
  talk.welcome();
  talk.event(Announce{.id = 7, .peer = kSessionPeer, .bytes = 0});
  talk.assign(kSessionPeer, kPorts, 7);
  talk.lose();
  talk.welcome();
  talk.said();
  talk.event(Begun{.id = 7, .port = kPorts[1]});
  const std::vector<json> said = talk.said();
  REQUIRE(said.size() == 1);
  CHECK(said[0]["port"] == kPorts[1]);
  talk.event(Begun{.id = 9, .port = kPorts[1]});  // it has ended
  CHECK(talk.said().empty());
}

TEST_CASE("an announcement tells the port of a connection whose beginning was lost") {
  Talk talk;
  talk.session =
      Session(Hello{.token = "t", .device = 0x0A000001, .instance = 1, .lanes = 2, .tcp = true, .fixed = true}, "job");
  talk.welcome();
  talk.event(Announce{.id = 7, .peer = kSessionPeer, .bytes = 500, .port = kPorts[1]});
  CHECK(talk.said().back()["port"] == kPorts[1]);
  talk.lose();
  talk.welcome();
  CHECK(talk.said().back()["port"] == kPorts[1]);
}

TEST_CASE("elephants that can change their ports tell none") {
  Talk talk;
  talk.welcome();
  talk.event(Announce{.id = 7, .peer = kSessionPeer, .bytes = 10});
  talk.assign(kSessionPeer, kPorts, 7);
  talk.event(Announce{.id = 7, .peer = kSessionPeer, .bytes = 500});
  for (const json& message : talk.said()) CHECK_FALSE(message.contains("port"));
}

TEST_CASE("measurements are sent at most once a second, many of them in several lines") {
  Talk talk;
  talk.welcome();
  for (std::uint64_t id = 1; id <= 300; ++id) {
    talk.event(Announce{
        .id = id, .peer = PeerName(kSessionPeer.address.ipv4() + static_cast<std::uint32_t>(id)), .bytes = 10});
    talk.event(Measured{.id = id, .bytes = id, .duration = kSecond});
  }
  talk.event(Measured{.id = 7, .bytes = 1, .duration = kSecond});
  talk.event(Measured{.id = 999, .bytes = 1});  // not open
  talk.said();
  talk.now = 10 * kSecond;
  CHECK(talk.session.deadline() <= talk.now);
  talk.session.on_time(talk.now, talk.out);
  auto said = talk.said();
  REQUIRE(said.size() == 1);
  CHECK(said[0]["flows"].size() == 256);
  CHECK(said[0]["flows"][6]["bytes"] == 8);
  CHECK(said[0]["flows"][6]["seconds"] == 2.0);
  talk.session.on_time(talk.now + kSecond / 2, talk.out);
  CHECK(talk.said().empty());
  CHECK(talk.session.deadline() == talk.now + kSecond);
  talk.session.on_time(talk.now + kSecond, talk.out);
  said = talk.said();
  REQUIRE(said.size() == 1);
  CHECK(said[0]["flows"].size() == 44);
  CHECK(talk.session.deadline() == kNever);
}

TEST_CASE("unanswered elephants are announced again to a busy service, any other error ends the connection") {
  Talk talk;
  talk.welcome();
  talk.event(Announce{.id = 1, .peer = kSessionPeer, .bytes = 10});
  talk.event(Announce{.id = 2, .peer = kOther, .bytes = 10});
  talk.assign(kSessionPeer, kPorts, 1);
  talk.said();
  CHECK(talk.receive({{"type", "error"}, {"code", "busy"}, {"text", "later"}}) == Verdict::kContinue);
  CHECK(talk.session.take_warning().empty());  // the message was valid
  talk.session.on_time(talk.session.deadline() - 1, talk.out);
  CHECK(talk.said().empty());
  talk.session.on_time(talk.session.deadline(), talk.out);
  const auto said = talk.said();
  REQUIRE(said.size() == 1);
  CHECK(said[0]["id"] == 2);
  CHECK(talk.receive({{"type", "error"}, {"code", "token"}, {"text", "wrong"}}) == Verdict::kDrop);
  CHECK(talk.session.take_warning() == "it says token: wrong");
}

}  // namespace
}  // namespace paralet::path_client
