// SPDX-License-Identifier: Apache-2.0
// The `verbs` back end over a fake libibverbs: registered memory, and memory of other devices.
#include <doctest/doctest.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <thread>
#include <utility>

#include "base/errors.hpp"
#include "verbs/verbs_backend.hpp"
#include "verbs_scene.hpp"

namespace paralet {
namespace {

using fake_verbs::nic;
using fake_verbs::record;
using test::backend_options;
using test::Bytes;
using test::VerbsPair;
using State = Request::State;

/// Ends hold_registrations and hold_deregistrations, so that a test that fails can close its devices.
struct Release {
  Release() = default;
  Release(const Release&) = delete;
  Release& operator=(const Release&) = delete;
  ~Release() {
    fake_verbs::hold_registrations(0);
    fake_verbs::hold_deregistrations(0);
  }
};

// -- registered memory -------------------------------------------------------------------------------------------

TEST_CASE("ibv_fork_init comes before all other calls") {
  VerbsPair pair(1);
  CHECK(record().fork_safe);
}

TEST_CASE("the same memory is registered with the NIC once, until its last deregistration") {
  fake_verbs::reset();
  VerbsPair pair(1);
  pair.check(100);
  Bytes memory(100'000);
  const std::size_t before = record().regions;
  std::vector<std::uint32_t> rkeys;
  rkeys.reserve(3);
  for (int i = 0; i < 3; ++i) rkeys.push_back(pair.two.register_memory(memory.data(), memory.size()));
  CHECK(record().regions == before + 1);
  const std::uint32_t part = pair.two.register_memory(memory.data(), 50'000);  // of another length
  CHECK(record().regions == before + 2);
  pair.two.deregister_memory(part);
  Bytes out = test::random_fill(1, memory.size());
  for (const std::uint32_t rkey : rkeys) {
    CHECK(record().regions == before + 1);
    pair.check({.bytes = out}, {.bytes = memory, .rkey = rkey});
    pair.two.deregister_memory(rkey);
  }
  CHECK(record().regions == before);
}

TEST_CASE("messages pass while a registration takes long") {
  fake_verbs::reset();
  VerbsPair pair(1);
  pair.check(100);
  Bytes memory(123'456);
  fake_verbs::hold_registrations(memory.size());
  std::atomic<std::uint32_t> rkey{0};
  std::thread slow([&] { rkey = pair.two.register_memory(memory.data(), memory.size()); });
  for (int i = 0; i < 20; ++i) pair.check(1000);
  CHECK(rkey == 0);
  fake_verbs::hold_registrations(0);
  slow.join();
  CHECK(rkey != 0);
  Bytes out = test::random_fill(1, memory.size());
  pair.check({.bytes = out}, {.bytes = memory, .rkey = rkey});
}

TEST_CASE("messages pass while the memory of another message is registered for it alone") {
  for (const Request::Kind slow : {Request::Kind::kSend, Request::Kind::kReceive}) {
    fake_verbs::reset();
    VerbsPair pair(1);
    pair.check(100);
    Bytes out = test::random_fill(1, 123'456);
    Bytes in(out.size());
    const bool sends = slow == Request::Kind::kSend;
    Device& mine = sends ? pair.one : pair.two;
    Device& other = sends ? pair.two : pair.one;
    // The other half has a registration already, so that only this half's is held.
    const std::uint32_t rkey = other.register_memory((sends ? in : out).data(), in.size());
    const Release release;
    fake_verbs::hold_registrations(in.size());
    const auto half =
        VerbsPair::submit(other, sends ? pair.from : pair.to, sends ? Request::Kind::kReceive : Request::Kind::kSend,
                          {.bytes = sends ? in : out, .rkey = rkey});
    std::shared_ptr<Request> held;
    std::thread submitting(
        [&] { held = VerbsPair::submit(mine, sends ? pair.to : pair.from, slow, {.bytes = sends ? out : in}); });
    CHECK(test::eventually([] { return record().registering == 1; }));
    bool passing = true;
    for (int i = 0; passing && i < 20; ++i) {
      Bytes small = test::random_fill(2, 1000);
      Bytes received(small.size());
      const auto get = VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = received}, 7);
      const auto put = VerbsPair::submit(pair.one, pair.to, Request::Kind::kSend, {.bytes = small}, 7);
      passing = VerbsPair::end(get) == State::kDone && VerbsPair::end(put) == State::kDone && small == received;
    }
    CHECK(passing);
    CHECK(record().registering == 1);
    fake_verbs::hold_registrations(0);
    submitting.join();
    CHECK(VerbsPair::end(held) == State::kDone);
    CHECK(VerbsPair::end(half) == State::kDone);
    CHECK(in == out);
    other.deregister_memory(rkey);
  }
}

/// Memory of two devices that no message has to register.
struct RegisteredPair {
  explicit RegisteredPair(VerbsPair& pair)
      : pair_(pair),
        from_(pair.one.register_memory(out_.data(), out_.size())),
        to_(pair.two.register_memory(in_.data(), in_.size())) {}
  RegisteredPair(const RegisteredPair&) = delete;
  RegisteredPair& operator=(const RegisteredPair&) = delete;
  ~RegisteredPair() {
    pair_.one.deregister_memory(from_);
    pair_.two.deregister_memory(to_);
  }
  /// Whether messages of this tag pass from one device to the other.
  [[nodiscard]] bool pass(std::uint32_t tag) {
    bool passing = true;
    for (int i = 0; passing && i < 20; ++i) {
      std::ranges::fill(in_, std::byte{0});
      const auto get = VerbsPair::submit(pair_.two, pair_.from, Request::Kind::kReceive, {in_, to_}, tag);
      const auto put = VerbsPair::submit(pair_.one, pair_.to, Request::Kind::kSend, {out_, from_}, tag);
      passing = VerbsPair::end(put) == State::kDone && VerbsPair::end(get) == State::kDone && in_ == out_;
    }
    return passing;
  }

 private:
  VerbsPair& pair_;
  Bytes out_ = test::random_fill(5, 1000);
  Bytes in_ = Bytes(1000);
  std::uint32_t from_;
  std::uint32_t to_;
};

TEST_CASE("messages pass while a message's own registration ends, and the message ends after it") {
  fake_verbs::reset();
  VerbsPair pair(1);
  pair.check(100);
  RegisteredPair others(pair);
  Bytes out = test::random_fill(1, 123'456);
  Bytes in(out.size());
  const std::size_t before = record().regions;
  const Release release;
  fake_verbs::hold_deregistrations(in.size());
  const auto received = VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = in});
  const auto sent = VerbsPair::submit(pair.one, pair.to, Request::Kind::kSend, {.bytes = out});
  REQUIRE(test::eventually([] { return record().deregistering == 2; }));
  CHECK(others.pass(7));
  CHECK(sent->state == State::kPending);
  CHECK(received->state == State::kPending);
  CHECK(record().deregistering == 2);
  fake_verbs::hold_deregistrations(0);
  CHECK(VerbsPair::end(sent) == State::kDone);
  CHECK(VerbsPair::end(received) == State::kDone);
  CHECK(in == out);
  CHECK(record().regions == before);
}

TEST_CASE("messages pass while memory is deregistered") {
  fake_verbs::reset();
  VerbsPair pair(1);
  pair.check(100);
  RegisteredPair others(pair);
  Bytes memory(123'456);
  const std::uint32_t rkey = pair.two.register_memory(memory.data(), memory.size());
  const Release release;
  fake_verbs::hold_deregistrations(memory.size());
  std::thread slow([&] { pair.two.deregister_memory(rkey); });
  const bool held = test::eventually([] { return record().deregistering == 1; });
  if (held) CHECK(others.pass(7));
  CHECK(record().deregistering == 1);
  fake_verbs::hold_deregistrations(0);
  slow.join();
  REQUIRE(held);
}

TEST_CASE("messages pass while the memory of a connection that is given up is deregistered") {
  fake_verbs::reset();
  VerbsPair pair(1);
  pair.check(100);
  RegisteredPair others(pair);
  const auto second = pair.one.connect(pair.listener->handle);
  std::shared_ptr<Connection> accepted;
  REQUIRE(test::eventually([&] {
    accepted = pair.listener->accept();
    return accepted != nullptr;
  }));
  Bytes memory(123'456);
  const std::uint32_t rkey = pair.two.register_memory(memory.data(), memory.size());
  const auto open = VerbsPair::submit(pair.two, accepted, Request::Kind::kReceive, {.bytes = memory, .rkey = rkey});
  const Release release;
  fake_verbs::hold_deregistrations(memory.size());
  std::atomic<bool> given_up{false};
  std::thread slow([&] {
    pair.two.give_up(accepted);
    given_up = true;
  });
  const bool held = test::eventually([] { return record().deregistering == 1; });
  if (held) CHECK(others.pass(7));
  CHECK(!given_up);  // the NIC may still write to the memory
  fake_verbs::hold_deregistrations(0);
  slow.join();
  REQUIRE(held);
  pair.two.close_connection(accepted);
  CHECK(VerbsPair::end(open) == State::kFailed);
}

TEST_CASE("receives are advertised while the memory of their advertisements is registered") {
  fake_verbs::reset();
  VerbsPair pair(1);
  RegisteredPair others(pair);
  const Release release;
  fake_verbs::hold_registrations(sizeof(AdvertisementBatch::bytes));
  std::vector<Bytes> out;
  std::vector<Bytes> in(30, Bytes(300));
  std::vector<std::shared_ptr<Request>> requests;
  for (std::size_t i = 0; i < in.size(); ++i) {
    out.push_back(test::random_fill(i, in[i].size()));
    requests.push_back(VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = in[i]}));
  }
  REQUIRE(test::eventually([] { return record().registering == 1; }));
  CHECK(others.pass(7));
  CHECK(record().registering == 1);
  for (Bytes& bytes : out) {
    requests.push_back(VerbsPair::submit(pair.one, pair.to, Request::Kind::kSend, {.bytes = bytes}));
  }
  for (std::size_t i = in.size(); i < requests.size(); ++i) CHECK(VerbsPair::end(requests[i]) == State::kDone);
  fake_verbs::hold_registrations(0);
  for (const auto& request : requests) CHECK(VerbsPair::end(request) == State::kDone);
  CHECK(in == out);
  CHECK(others.pass(8));
}

TEST_CASE("a peer that fails while its advertisements are registered leaves no memory registered") {
  fake_verbs::reset();
  const auto of_a_device = [] {
    const Device alone(test::verbs_options(1));
    return record().regions;
  };
  const std::size_t left = of_a_device();
  VerbsPair pair(1);
  const Release release;
  fake_verbs::hold_registrations(sizeof(AdvertisementBatch::bytes));
  Bytes in(50'000);
  const auto received = VerbsPair::submit(pair.two, pair.from, Request::Kind::kReceive, {.bytes = in});
  REQUIRE(test::eventually([] { return record().registering == 1; }));
  pair.one.close(0);
  CHECK(test::eventually([&] { return pair.from->state == Connection::State::kClosed; }));
  fake_verbs::hold_registrations(0);
  CHECK(VerbsPair::end(received) == State::kFailed);
  CHECK(test::eventually([&] { return pair.two.counters().peers == 0; }));
  CHECK(test::eventually([&] { return record().regions == left; }));
}

TEST_CASE("a message that is refused leaves no memory registered") {
  fake_verbs::reset();
  VerbsPair pair(1);
  pair.check(100);
  pair.one.close_connection(pair.to);
  Bytes bytes(100'000);
  const std::size_t before = record().regions;
  for (const auto kind : {Request::Kind::kSend, Request::Kind::kReceive}) {
    CHECK(VerbsPair::end(VerbsPair::submit(pair.one, pair.to, kind, {.bytes = bytes})) == State::kFailed);
    CHECK(record().regions == before);
  }
}

TEST_CASE("closing a device waits for a registration in progress") {
  fake_verbs::reset();
  Device device(test::verbs_options(1));
  Bytes memory(123'456);
  fake_verbs::hold_registrations(memory.size());
  std::thread slow([&] { CHECK(device.register_memory(memory.data(), memory.size()) != 0); });
  REQUIRE(test::eventually([] { return fake_verbs::record().registering == 1; }));
  std::thread closing([&] { device.close(0); });
  fake_verbs::hold_registrations(0);
  slow.join();
  closing.join();
}

TEST_CASE("registrations have relaxed ordering, or do without where the device refuses it") {
  for (const bool takes : {true, false}) {
    CAPTURE(takes);
    fake_verbs::reset();
    nic().relaxed_ordering = takes;
    VerbsPair pair(1);
    for (const std::size_t length : {65U, 100'000U}) pair.check(length);
    CHECK((record().relaxed > 0) == takes);
  }
}

TEST_CASE("memory is registered on kernels with any page size") {
  for (const std::uint64_t page_bytes : {4096U, 16384U, 65536U}) {
    fake_verbs::reset();
    nic().page_bytes = page_bytes;
    VerbsOptions options = backend_options();
    options.page_bytes = page_bytes;
    const auto backend = open_verbs(options);
    Bytes memory(200'000);
    for (const std::size_t offset : {0U, 4096U, 5000U, 70'000U}) {
      CAPTURE(page_bytes);
      const std::uint32_t rkey = backend->register_memory(memory.data() + offset, 100'000);
      CHECK((reinterpret_cast<std::uint64_t>(memory.data() + offset) - backend->remote_address(rkey)) % page_bytes ==
            0);
      CHECK(backend->remote_address(rkey) < page_bytes);  // peers need not know more of the address
      backend->deregister_memory(rkey);
    }
  }
}

// -- memory of other devices -------------------------------------------------------------------------------------

TEST_CASE("messages use another device's memory through its dma-buf, and no processor touches it") {
  fake_verbs::reset();
  Bytes source(1 << 20);
  Bytes target(1 << 20);
  fake_verbs::share_device_memory(901, source.data(), source.size());
  fake_verbs::share_device_memory(902, target.data(), target.size());
  VerbsPair pair;
  // The addresses are only names: they are never dereferenced.
  constexpr std::uint64_t kOffset = 4096;
  const std::uint64_t length = source.size() - kOffset;
  const std::uint32_t from = pair.one.register_device_memory(source.data() + kOffset, length, DmaBuf{901, kOffset});
  const std::uint32_t to = pair.two.register_device_memory(target.data() + kOffset, length, DmaBuf{902, kOffset});
  std::uint64_t offset = 0;
  for (const std::size_t size : {0U, 8U, 64U, 65U, 500'000U}) {
    std::ranges::copy(test::random_fill(size, size), source.data() + kOffset + offset);
    pair.check({.bytes = std::span(source).subspan(kOffset + offset, size), .rkey = from, .offset = offset},
               {.bytes = std::span(target).subspan(kOffset + offset, size), .rkey = to, .offset = offset});
    offset += size;
  }
  CHECK(record().inlined_from_device == 0);
  pair.one.deregister_memory(from);
  pair.two.deregister_memory(to);
}

TEST_CASE("a fence completes with a READ of the memory") {
  fake_verbs::reset();
  Bytes memory(4096);
  fake_verbs::share_device_memory(901, memory.data(), memory.size());
  Device device(test::verbs_options(2));
  const auto fence = [&](std::uint32_t rkey) {
    return VerbsPair::submit(device, nullptr, Request::Kind::kFence, {.bytes = {}, .rkey = rkey, .offset = 100});
  };
  const std::uint32_t rkey = device.register_device_memory(memory.data(), memory.size(), DmaBuf{901, 0});
  for (int i = 0; i < 3; ++i) CHECK(VerbsPair::end(fence(rkey)) == State::kDone);
  CHECK(record().reads == 3);
  CHECK(record().queue_pairs == 1);
  CHECK(device.counters().messages.receives == 0);

  const auto wrong = fence(rkey + 1000);
  CHECK(VerbsPair::end(wrong) == State::kFailed);
  CHECK(wrong->failure == Failure::kDevice);
  CHECK(VerbsPair::end(fence(rkey)) == State::kDone);                 // a failed fence does not affect later ones
  CHECK(test::eventually([] { return record().queue_pairs == 1; }));  // its own is destroyed when it is drained

  device.close(0);
  const auto late = fence(rkey);
  CHECK(VerbsPair::end(late) == State::kFailed);
}

TEST_CASE("closing the device ends a pending fence") {
  fake_verbs::reset();
  Bytes memory(4096);
  fake_verbs::share_device_memory(901, memory.data(), memory.size());
  Device device(test::verbs_options(2));
  const std::uint32_t rkey = device.register_device_memory(memory.data(), memory.size(), DmaBuf{901, 0});
  fake_verbs::hold_completions(true);
  const auto fence = VerbsPair::submit(device, nullptr, Request::Kind::kFence, {.bytes = {}, .rkey = rkey});
  device.close(0);
  CHECK(VerbsPair::end(fence) == State::kFailed);
  CHECK(fence->error == "the device was closed");
}

TEST_CASE("dma-buf support is detected as NCCL does it, and nothing stays registered") {
  fake_verbs::reset();
  for (const auto& [error, takes] :
       {std::pair(0, true), {EBADF, true}, {EOPNOTSUPP, false}, {EPROTONOSUPPORT, false}}) {
    nic().dmabuf_error = error;
    CHECK(verbs_ports().at(0).dmabuf == takes);
  }
  CHECK(record().regions == 0);
}

TEST_CASE("registering an invalid dma-buf is an error with a reason") {
  fake_verbs::reset();
  Device device(test::verbs_options(2));
  std::byte name{};
  CHECK_THROWS_WITH_AS(device.register_device_memory(&name, 4096, DmaBuf{903, 0}),
                       "fake0 cannot register a dma-buf: Bad file descriptor", DeviceError);
  DeviceOptions soft;
  soft.address = fake_verbs::kAddress;
  Device other(soft);
  CHECK_THROWS_WITH_AS(other.register_device_memory(&name, 4096, DmaBuf{903, 0}),
                       "this back end takes host memory only", DeviceError);
}

}  // namespace
}  // namespace paralet
