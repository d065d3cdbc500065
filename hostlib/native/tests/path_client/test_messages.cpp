// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "base/interfaces.hpp"
#include "base/random.hpp"
#include "path_client/messages.hpp"

namespace paralet::path_client {
namespace {

using nlohmann::json;

constexpr PeerName kWirePeer = 0x0A000102;  // 10.0.1.2

/// The JSON object of a line. The line must end with its only line feed.
json object(const std::string& line) {
  REQUIRE(!line.empty());
  CHECK(line.find('\n') == line.size() - 1);
  return json::parse(line);
}

template <typename T>
T as(const std::string& line) {
  const Answer answer = decode(line);
  REQUIRE(std::holds_alternative<T>(answer));
  return std::get<T>(answer);
}

InvalidMessage invalid(const std::string& line) { return as<InvalidMessage>(line); }

const std::string kAssign =
    R"({"type":"assign","peer":"10.0.1.2","ports":[49152,65535],"id":17,"rate_bps":1e9,"generation":5})";

/// kAssign with one member replaced, or removed for "".
std::string assign_with(const char* name, const std::string& value) {
  json message = json::parse(kAssign);
  message.erase(name);
  if (!value.empty()) message[name] = json::parse(value);
  return message.dump();
}

TEST_CASE("messages of a host match docs/path-service.md") {
  CHECK(object(encode(Hello{.token = "t", .device = 0x0A000001, .instance = 0xABC, .lanes = 8})) ==
        json::parse(R"({"type":"hello","version":2,"token":"t","device":"10.0.0.1","instance":"0000000000000abc",
                        "lanes":8,"generation":0})"));
  CHECK(object(encode(Hello{.device = 0x0A000001, .lanes = 8, .version = kOldestVersion}))["version"] == 1);
  CHECK(object(encode(Hello{.device = 0x0A000001, .lanes = 8, .tcp = true}))["protocol"] == "tcp");
  CHECK(object(encode(Hello{.device = 0x0A000001, .lanes = 8, .fixed = true}))["fixed"] == true);
  CHECK(object(encode(Hello{.device = 0x0A000001, .lanes = 8, .paths = true}))["paths"] == true);
  CHECK(object(encode(Announce{.id = 17, .peer = kWirePeer, .bytes = 104857600, .repeat = kSecond / 2}, "bert")) ==
        json::parse(R"({"type":"announce","id":17,"peer":"10.0.1.2","bytes":104857600,"job":"bert","repeat_s":0.5})"));
  CHECK(object(encode(Announce{.id = 1, .peer = kWirePeer, .bytes = 2}, "")) ==
        json::parse(R"({"type":"announce","id":1,"peer":"10.0.1.2","bytes":2})"));
  CHECK(object(encode(Release{17})) == json::parse(R"({"type":"release","id":17})"));
  const std::array flows{
      Measured{.id = 17, .bytes = 1048576, .duration = kSecond / 4, .rtt = kSecond / 4096, .retransmits = 3}};
  CHECK(object(encode(flows)) == json::parse(R"({"type":"measured","flows":[{"id":17,"bytes":1048576,"seconds":0.25,
                                              "rtt_s":0.000244140,"retransmits":3}]})"));
  CHECK(object(encode(Report{.id = 17, .lane = 3, .port = 50123, .reason = Reason::kLoss, .value = 0.5})) ==
        json::parse(R"({"type":"report","id":17,"lane":3,"port":50123,"reason":"loss","value":0.5})"));
  CHECK(object(encode_ping(1)) == json::parse(R"({"type":"ping","nonce":1})"));
}

TEST_CASE("messages of a host about probes match docs/path-service.md") {
  const ProbedPort hop{.port = 49164, .answer = PortAnswer::kHop, .router = 0xAC100001, .round_trip = 200'000};
  const ProbedPort silent{.port = 49196, .answer = PortAnswer::kNone};
  CHECK(object(encode_probe(200)) == json::parse(R"({"type":"probe","rate":200.0,"hops":true,"until":true})"));
  CHECK(object(encode(Probed{.ask = 7, .answers = {hop, silent}})) ==
        json::parse(R"({"type":"probed","ask":7,"answers":[[49164,"hop","172.16.0.1",0.0002],
                        [49196,"none",null,null]]})"));
  CHECK(object(encode(Moved{.peer = kWirePeer, .ttl = 3, .answers = {hop}})) ==
        json::parse(R"({"type":"moved","peer":"10.0.1.2","ttl":3,"answers":[[49164,"hop","172.16.0.1",0.0002]]})"));
  CHECK(object(encode(Moved{.peer = PeerName(kWirePeer.address, 5000), .answers = {silent}}))["peer_port"] == 5000);
  ProbedPort arrived = hop;
  arrived.answer = PortAnswer::kDestination;
  ProbedPort failed = silent;
  failed.answer = PortAnswer::kFailed;
  const json answers = object(encode(Probed{.ask = 8, .answers = {arrived, failed}}))["answers"];
  CHECK(answers[0][1] == "destination");
  CHECK(answers[1] == json::parse(R"([49196,"failed",null,null])"));
}

TEST_CASE("a full line of answers stays below the 64 KiB that a host may send") {
  IpAddress::Bytes longest{};
  longest.fill(0xFD);
  const std::vector<ProbedPort> answers(
      kMaxProbedPorts,
      {.port = 65535, .answer = PortAnswer::kDestination, .router = IpAddress(longest), .round_trip = 1'234'567'891});
  CHECK(encode(Probed{.ask = UINT64_MAX, .answers = answers}).size() < 65536);
  CHECK(encode(Moved{.peer = PeerName(IpAddress(longest), 65535), .answers = answers}).size() < 65536);
}

TEST_CASE("a full line of measurements stays below the 64 KiB that a host may send") {
  const std::vector<Measured> flows(
      256,
      {.id = UINT64_MAX, .bytes = UINT64_MAX, .duration = 1234567891, .rtt = 1234567891, .retransmits = UINT64_MAX});
  CHECK(encode(flows).size() < 65536);
}

TEST_CASE("messages of the service are decoded") {
  const auto assign = as<Assign>(kAssign);
  CHECK(assign.peer == kWirePeer);
  CHECK(assign.ports == std::vector<std::uint16_t>{49152, 65535});
  CHECK(assign.id == 17);
  CHECK(assign.rate_bps == 1e9);
  CHECK(assign.generation == 5);
  CHECK(assign.paths.empty());
  CHECK(as<Assign>(assign_with("paths", R"([["leaf1:5","spine2:1"],[]])")).paths ==
        std::vector<Path>{{"leaf1:5", "spine2:1"}, {}});
  const auto reverse = as<Assign>(R"({"type":"assign","peer":"10.0.1.2","ports":[],"rate_bps":null,"generation":6})");
  CHECK(reverse.ports.empty());
  CHECK(!reverse.id);
  CHECK(reverse.rate_bps == 0);
  as<Welcome>(R"({"type":"welcome","version":1,"session":"ab","more":[1,2]})");
  const auto refusal = as<Refusal>(R"({"type":"error","code":"token","text":"wrong\ntoken"})");
  CHECK(refusal.code == "token");
  CHECK(refusal.text == "wrong\\ntoken");  // safe for a log
  as<Ignored>(R"({"type":"pong","nonce":1})");
  as<Ignored>(R"({"type":"of a later version"})");
}

TEST_CASE("an assignment with an invalid member is invalid, and names its peer") {
  for (const auto& wrong : std::vector<std::pair<const char*, std::string>>{
           {"ports", ""},          {"ports", "null"},      {"ports", "[49151]"},   {"ports", "[65536]"},
           {"ports", "[-1]"},      {"ports", "[5e4]"},     {"ports", "[\"x\"]"},   {"ports", "{}"},
           {"ports", "[[50000]]"}, {"id", "-1"},           {"id", "\"17\""},       {"id", "1.5"},
           {"cut", "1"},           {"cut", "\"yes\""},     {"rate_bps", "0"},      {"rate_bps", "-1"},
           {"rate_bps", "\"1\""},  {"rate_bps", "[]"},     {"generation", ""},     {"generation", "-1"},
           {"generation", "1.5"},  {"generation", "null"}, {"paths", "1"},         {"paths", "[1]"},
           {"paths", "[[1]]"},     {"paths", "[[\"\"]]"},  {"paths", "[[],[],[]]"}}) {
    CAPTURE(wrong.first);
    CAPTURE(wrong.second);
    const InvalidMessage found = invalid(assign_with(wrong.first, wrong.second));
    CHECK(found.peer == kWirePeer);
    CHECK(!found.fatal);
    CHECK(!found.what.empty());
  }
  json many = json::parse(kAssign);
  many["ports"] = std::vector<int>(kMaxPorts + 1, 50000);
  CHECK(invalid(many.dump()).peer == kWirePeer);
  json three = json::parse(kAssign);
  three["ports"] = {50000, 50001, 50002};
  three["paths"] = json::parse("[[],[]]");  // neither one for each port nor one for all
  CHECK(invalid(three.dump()).peer == kWirePeer);
  for (const char* peer : {"", "1", "null", "\"10.0.1\"", "\"ten\"", "[]"}) {
    CHECK(!invalid(assign_with("peer", peer)).peer);
  }
}

const std::string kProbe =
    R"({"type":"probe","ask":7,"peer":"10.0.1.2","peer_port":4792,"ttl":3,"ports":[49164,49196],"rate":100.0})";
const std::string kWatch =
    R"({"type":"watch","peer":"10.0.1.2","ttl":3,"period_s":1.0,"ports":[[49164,"172.16.0.1"],[49196,"fd00::1"]]})";

TEST_CASE("asks for probes and watches are decoded") {
  const auto ask = as<ProbeAsk>(kProbe);
  CHECK(ask.ask == 7);
  CHECK(ask.peer == PeerName(kWirePeer.address, 4792));
  CHECK(ask.ttl == 3);
  CHECK(ask.ports == std::vector<std::uint16_t>{49164, 49196});
  CHECK(ask.rate == 100);
  CHECK(as<ProbeAsk>(R"({"type":"probe","ask":0,"peer":"fd00::1","ttl":255,"ports":[65535],"rate":null})").rate == 0);
  CHECK_FALSE(ask.once);
  CHECK(ask.until.empty());
  const auto sought = as<ProbeAsk>(
      R"({"type":"probe","ask":0,"peer":"10.0.1.2","ttl":3,"ports":[65535],"once":true,"until":["172.16.0.1"]})");
  CHECK(sought.once);
  CHECK(sought.until == std::vector<IpAddress>{IpAddress(0xAC100001)});
  const auto watch = as<Watch>(kWatch);
  CHECK(watch.peer == kWirePeer);
  CHECK(watch.ttl == 3);
  CHECK(watch.period == kSecond);
  REQUIRE(watch.ports.size() == 2);
  CHECK(watch.ports[0].port == 49164);
  CHECK(watch.ports[0].router == IpAddress(0xAC100001));
  CHECK(watch.ports[1].router == parse_address("fd00::1"));
  CHECK(as<Watch>(R"({"type":"watch","peer":"10.0.1.2","ttl":1,"period_s":0.1,"ports":[]})").ports.empty());
}

TEST_CASE("a welcome may offer probes, from version 2 on") {
  CHECK(!as<Welcome>(R"({"type":"welcome","version":1,"probe":true})").probe);
  CHECK(!as<Welcome>(R"({"type":"welcome","version":2})").probe);
  const auto standard = as<Welcome>(R"({"type":"welcome","version":2,"probe":true})");
  CHECK(standard.probe);
  CHECK(standard.router_rate == 1);
  CHECK(standard.router_burst == 6);
  const auto own = as<Welcome>(R"({"type":"welcome","version":2,"router_rate":0,"router_burst":1})");
  CHECK(own.router_rate == 0);
  CHECK(own.router_burst == 1);
  for (const char* wrong : {R"("probe":1)", R"("probe":"yes")", R"("router_rate":-1)", R"("router_rate":"1")",
                            R"("router_burst":0)", R"("router_burst":1e7)"}) {
    CAPTURE(wrong);
    CHECK(invalid(std::string(R"({"type":"welcome","version":2,)") + wrong + "}").fatal);
  }
}

/// A message with one member replaced, or removed for "".
std::string with(const std::string& message, const char* name, const std::string& value) {
  json out = json::parse(message);
  out.erase(name);
  if (!value.empty()) out[name] = json::parse(value);
  return out.dump();
}

TEST_CASE("an ask for probes, or a watch, with an invalid member is invalid") {
  const std::vector<std::pair<const char*, std::string>> of_both{
      {"peer", ""},         {"peer", "1"},        {"peer", "\"ten\""},   {"peer_port", "0"},   {"peer_port", "65536"},
      {"ttl", ""},          {"ttl", "0"},         {"ttl", "256"},        {"ttl", "-1"},        {"ttl", "1.5"},
      {"ports", ""},        {"ports", "null"},    {"ports", "{}"},       {"ports", "[49151]"}, {"ports", "[[]]"},
      {"ports", "[\"x\"]"}, {"ports", "[65536]"}, {"peer_port", "\"1\""}};
  for (const auto& wrong : of_both) {
    CAPTURE(wrong.first);
    CAPTURE(wrong.second);
    for (const std::string& message : {kProbe, kWatch}) {
      const InvalidMessage found = invalid(with(message, wrong.first, wrong.second));
      CHECK(!found.fatal);
      CHECK(!found.what.empty());
    }
  }
  for (const auto& wrong : std::vector<std::pair<const char*, std::string>>{{"ask", ""},
                                                                            {"ask", "-1"},
                                                                            {"ask", "9223372036854775808"},
                                                                            {"ask", "1.5"},
                                                                            {"once", "1"},
                                                                            {"until", "1"},
                                                                            {"until", "[1]"},
                                                                            {"until", "[\"ten\"]"},
                                                                            {"ports", "[]"},
                                                                            {"rate", "0"},
                                                                            {"rate", "-1"},
                                                                            {"rate", "\"1\""},
                                                                            {"rate", "1e7"},
                                                                            {"rate", "1e-9"},
                                                                            {"ports", "[50000,50000]"},
                                                                            {"ports", "[-50000]"},
                                                                            {"ports", "[5e4]"}}) {
    CAPTURE(wrong.first);
    CAPTURE(wrong.second);
    CHECK(!invalid(with(kProbe, wrong.first, wrong.second)).fatal);
  }
  for (const auto& wrong :
       std::vector<std::pair<const char*, std::string>>{{"period_s", ""},
                                                        {"period_s", "0"},
                                                        {"period_s", "0.09"},
                                                        {"period_s", "3601"},
                                                        {"period_s", "\"1\""},
                                                        {"ports", R"([[49151,"10.0.0.1"]])"},
                                                        {"ports", R"([[50000]])"},
                                                        {"ports", R"([[50000,"10.0.0.1",1]])"},
                                                        {"ports", R"([[50000,"ten"]])"},
                                                        {"ports", R"([[50000,null]])"},
                                                        {"ports", R"([[50000,"10.0.0.1"],[50000,"10.0.0.2"]])"}}) {
    CAPTURE(wrong.first);
    CAPTURE(wrong.second);
    CHECK(!invalid(with(kWatch, wrong.first, wrong.second)).fatal);
  }
  std::vector<int> many;
  std::vector<std::pair<int, const char*>> watched;
  for (int i = 0; i <= static_cast<int>(kMaxProbedPorts); ++i) {
    many.push_back(50000 + i);
    watched.emplace_back(50000 + i, "10.0.0.1");
  }
  CHECK(!invalid(with(kProbe, "ports", json(many).dump())).fatal);
  CHECK(!invalid(with(kWatch, "ports", json(watched).dump())).fatal);
}

TEST_CASE("input that is not of this protocol is fatal") {
  for (const char* line : {"", " ", "x", "[]", "1", "null", "{", "{}{}", "{\"type\":\"assign\"", "\xFF\xFE",
                           "{\"type\":\"welcome\",\"version\":3}", "{\"type\":\"welcome\",\"version\":0}",
                           "{\"type\":\"welcome\"}", "{\"a\":1e999}"}) {
    CAPTURE(line);
    CHECK(invalid(line).fatal);
  }
  CHECK(!invalid(R"({"type":5})").fatal);
  CHECK(invalid(std::string(kMaxLine, '[')).fatal);
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  CHECK(invalid(deep).fatal);
}

TEST_CASE("randomly changed bytes are always decoded to an answer within its bounds") {
  SplitMix64 random(1);
  std::size_t assignments = 0;
  std::size_t asks = 0;
  std::size_t watches = 0;
  const std::array<std::string, 3> messages{kAssign, kProbe, kWatch};
  for (int i = 0; i < 30'000; ++i) {
    std::string line = messages[random.below(messages.size())];
    for (std::uint64_t changes = random.below(4); changes > 0; --changes) {
      line[random.below(line.size())] = static_cast<char>(random.next());
    }
    if (random.below(4) == 0) line.resize(random.below(line.size()));
    const Answer answer = decode(line);
    if (const auto* assign = std::get_if<Assign>(&answer)) {
      ++assignments;
      for (const std::uint16_t port : assign->ports) CHECK(port >= 0xC000);
      CHECK(assign->rate_bps >= 0);
    } else if (const auto* ask = std::get_if<ProbeAsk>(&answer)) {
      ++asks;
      for (const std::uint16_t port : ask->ports) CHECK(port >= 0xC000);
      CHECK(ask->ttl > 0);
      CHECK(ask->rate >= 0);
    } else if (const auto* watch = std::get_if<Watch>(&answer)) {
      ++watches;
      for (const Watch::Port& one : watch->ports) CHECK(one.port >= 0xC000);
      CHECK(watch->ttl > 0);
      CHECK(watch->period >= kSecond / 10);
    }
  }
  // Otherwise the test would be empty.
  CHECK(assignments > 1000);
  CHECK(asks > 1000);
  CHECK(watches > 1000);
}

}  // namespace
}  // namespace paralet::path_client
