// SPDX-License-Identifier: Apache-2.0
// Fuzzes a whole device through a malicious peer that has the device's handle, or whose handle the device has. The peer
// knows all QPNs, PSNs and rkeys. It sends arbitrary frames over TCP, and arbitrary advertisements, flowlets and
// acknowledgements in valid packets. Meanwhile the application receives, sends and closes. An input chooses between a
// device with one NIC and a fused device with two.
//
// Invariants:
// - memory is written only while a receive into it is open (AddressSanitizer; other memory is poisoned)
// - a receive never reports more bytes than its length
// - every request ends when the peer is gone
// - afterwards a message between the device and another peer arrives
#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "application.hpp"
#include "attacker.hpp"
#include "engine/device.hpp"
#include "engine/handshake.hpp"
#include "hosts.hpp"
#include "loopback.hpp"
#include "script.hpp"

namespace paralet::fuzz {
namespace {

using State = Request::State;

constexpr unsigned kMaxSteps = 48;
constexpr unsigned kHonestEvery = 32;
constexpr Nanos kTimeout = 50 * kSecond;

class Stage {
 public:
  /// `members`: NICs of each device.
  explicit Stage(unsigned members)
      : members_(members),
        victim_(device_options(kVictim, members)),
        honest_(device_options(kHonest, members)),
        listener_(victim_.listen()),
        attacker_(*handshake::decode_handle(listener_->handle), members),
        application_(victim_) {
    to_ = honest_.connect(listener_->handle);
    require(eventually([&] { return (back_ = listener_->accept()) != nullptr; }));
    require(eventually([&] { return to_->state == Connection::State::kOpen; }));
    exchange();
  }

  void play(Script script) {
    begin(script);
    for (unsigned step = 0; step < kMaxSteps && !script.done(); ++step) act(script);
    end();
    if (++plays_ % kHonestEvery == 0) exchange();
  }

 private:
  template <typename Condition>
  bool eventually(Condition condition) {
    for (const Nanos start = now(); now() - start < kTimeout;) {
      if (condition()) return true;
      victim_.poll();
      honest_.poll();
      std::this_thread::yield();  // a progress thread may hold the progress lock
    }
    return false;
  }

  /// Polls until the victim has handled what was sent: it reads its channels at least every 64 rounds.
  void sync(int rounds = 70) {
    for (int i = 0; i < rounds; ++i) victim_.poll();
    attacker_.listen();
    application_.settle();
  }

  void accept() {
    while (auto connection = listener_->accept()) application_.connections.push_back(connection);
  }

  /// One message from the honest peer to the victim.
  void exchange() {
    std::vector<std::byte> message(3000, static_cast<std::byte>(plays_));
    std::vector<std::byte> memory(message.size());
    const auto receive = request(back_, Request::Kind::kReceive, memory);
    const auto send = request(to_, Request::Kind::kSend, message);
    victim_.submit(receive);
    honest_.submit(send);
    require(eventually([&] { return receive->state != State::kPending && send->state != State::kPending; }));
    require(receive->state == State::kDone && receive->bytes == message.size() && memory == message);
  }

  void begin(Script& script) {
    restart_system();
    attacker_.begin(script);
    if (attacker_.calls()) {
      attacker_.call();
      if (attacker_.polite()) {
        attacker_.greet();
        sync(5);
        attacker_.connect();
      }
    } else {
      application_.connections.push_back(victim_.connect(handshake::encode(attacker_.handle())));
      victim_.poll();
    }
    sync();
    accept();
  }

  void act(Script& script) {
    const std::uint8_t what = script.u8();
    if (members_ > 1 && what >= 0xC0) {
      attacker_.change_paths(script);
      sync(2);
      return;
    }
    switch (what % 10) {
      case 0:
      case 1:
        attacker_.send_something(script);
        break;
      case 2:
      case 3:
        attacker_.send_flowlet(script);
        break;
      case 4:
        attacker_.send_advertisements(script);
        break;
      case 5:
        application_.start_receive(script);
        break;
      case 6:
        application_.start_send(script);
        break;
      case 7:
        application_.close_one(script);
        break;
      case 8:
        attacker_.acknowledge_something(script);
        break;
      default:
        sync(script.u8() % 128);
        accept();
        break;
    }
    sync(2);
  }

  void end() {
    auto& connections = application_.connections;
    for (const auto& connection : connections) victim_.close_connection(connection);
    Nanos again = 0;
    require(eventually([&] {
      if (attacker_.calls() && attacker_.fused() && now() >= again) {
        attacker_.rejoin();
        sync(140);  // it accepts the connection the first time, and reads the join the second time
        again = now() + 20 * kMillisecond;  // a progress thread may have held the progress lock meanwhile
      }
      if (!attacker_.calls()) attacker_.take_calls();  // the victim may try to connect again
      attacker_.hang_up();
      while (auto connection = listener_->accept()) victim_.close_connection(connection);
      return std::ranges::all_of(connections, [](const auto& c) { return c->state == Connection::State::kClosed; });
    }));
    application_.settle();
    require(application_.idle());
    connections.clear();
    attacker_.forget();
  }

  unsigned members_;
  Device victim_;
  Device honest_;
  std::shared_ptr<Listener> listener_;
  std::shared_ptr<Connection> to_;
  std::shared_ptr<Connection> back_;
  unsigned plays_ = 0;
  Attacker attacker_;
  Application application_;
};

}  // namespace
}  // namespace paralet::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using paralet::fuzz::Stage;
  static auto& plain = *new Stage(1);  // never destroyed: their threads outlive static destructors
  static auto& fused = *new Stage(paralet::fuzz::kMostMembers);
  (size > 0 && (data[0] & 64) != 0 ? fused : plain).play({data, size});
  return 0;
}
