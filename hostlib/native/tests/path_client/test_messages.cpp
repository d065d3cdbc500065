// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string>

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
        json::parse(R"({"type":"hello","version":1,"token":"t","device":"10.0.0.1","instance":"0000000000000abc",
                        "lanes":8})"));
  CHECK(object(encode(Hello{.device = 0x0A000001, .lanes = 8, .tcp = true}))["protocol"] == "tcp");
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
           {"ports", ""},          {"ports", "null"},     {"ports", "[49151]"}, {"ports", "[65536]"},
           {"ports", "[-1]"},      {"ports", "[5e4]"},    {"ports", "[\"x\"]"}, {"ports", "{}"},
           {"ports", "[[50000]]"}, {"id", "-1"},          {"id", "\"17\""},     {"id", "1.5"},
           {"cut", "1"},           {"cut", "\"yes\""},    {"rate_bps", "0"},    {"rate_bps", "-1"},
           {"rate_bps", "\"1\""},  {"rate_bps", "[]"},    {"generation", ""},   {"generation", "-1"},
           {"generation", "1.5"},  {"generation", "null"}}) {
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
  for (const char* peer : {"", "1", "null", "\"10.0.1\"", "\"ten\"", "[]"}) {
    CHECK(!invalid(assign_with("peer", peer)).peer);
  }
}

TEST_CASE("input that is not of this protocol is fatal") {
  for (const char* line : {"", " ", "x", "[]", "1", "null", "{", "{}{}", "{\"type\":\"assign\"", "\xFF\xFE",
                           "{\"type\":\"welcome\",\"version\":2}", "{\"type\":\"welcome\"}", "{\"a\":1e999}"}) {
    CAPTURE(line);
    CHECK(invalid(line).fatal);
  }
  CHECK(!invalid(R"({"type":5})").fatal);
  CHECK(invalid(std::string(kMaxLine, '[')).fatal);
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  CHECK(invalid(deep).fatal);
}

TEST_CASE("randomly changed bytes are always decoded to an answer") {
  SplitMix64 random(1);
  std::size_t understood = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string line = kAssign;
    for (std::uint64_t changes = random.below(4); changes > 0; --changes) {
      line[random.below(line.size())] = static_cast<char>(random.next());
    }
    if (random.below(4) == 0) line.resize(random.below(line.size()));
    const Answer answer = decode(line);
    if (const auto* assign = std::get_if<Assign>(&answer)) {
      ++understood;
      for (const std::uint16_t port : assign->ports) CHECK(port >= 0xC000);
      CHECK(assign->rate_bps >= 0);
    }
  }
  CHECK(understood > 1000);  // otherwise the test would be empty
}

}  // namespace
}  // namespace paralet::path_client
