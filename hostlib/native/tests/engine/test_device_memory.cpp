// SPDX-License-Identifier: Apache-2.0
// Registered memory: its deregistration under messages of any connection, and closes that wait for it.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <chrono>
#include <memory>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include "engine/device_fixture.hpp"

namespace paralet {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture

/// Pages that are unmapped at the end, so that a later access crashes.
class Pages {
 public:
  /// At `hint` if that range is free and a sanitizer allows it, else anywhere.
  explicit Pages(std::size_t bytes, void* hint = nullptr) : bytes_(bytes), hole_(bytes) {
    void* const at = ::mmap(hint, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(at != MAP_FAILED);
    data_ = static_cast<std::byte*>(at);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() {
    ::munmap(data_, hole_);
    if (hole_ < bytes_) ::munmap(data_ + hole_ + kPage, bytes_ - hole_ - kPage);
  }
  /// Unmaps the page at `offset`. It is not unmapped again, because another thread may have mapped memory there.
  void unmap_page(std::size_t offset) {
    REQUIRE(::munmap(data_ + offset, kPage) == 0);
    hole_ = offset;
  }
  [[nodiscard]] std::span<std::byte> bytes() const { return {data_, bytes_}; }

 private:
  static constexpr std::size_t kPage = 4096;
  std::byte* data_ = nullptr;
  std::size_t bytes_;
  std::size_t hole_;
};

RequestPtr submit_registered(Device& device, const ConnectionPtr& connection, Request::Kind kind,
                             std::span<std::byte> memory, std::uint32_t rkey) {
  auto request = std::make_shared<Request>();
  request->kind = kind;
  request->connection = connection;
  request->data = memory.data();
  request->length = memory.size();
  request->rkey = rkey;
  device.submit(request);
  return request;
}

constexpr const char* kDeregistered = "the memory of one of its messages was deregistered before the message was done";

TEST_CASE("deregistering memory ends the sends of every connection that read it, and no other connection") {
  auto out = std::make_unique<Pages>(64 << 20);
  DevicePair pair;
  const Joined used(pair.a, pair.b);
  const Joined waiting(pair.a, pair.b);
  const Joined neighbour(pair.a, pair.b);
  const std::uint32_t rkey = pair.a.register_memory(out->bytes().data(), out->bytes().size());
  const auto received = used.receive(Bytes(out->bytes().size()));
  const auto sent = submit_registered(pair.a, used.to, Request::Kind::kSend, out->bytes(), rkey);
  const auto unmatched = submit_registered(pair.a, waiting.to, Request::Kind::kSend, out->bytes(), rkey);
  const auto later = neighbour.receive(Bytes(100), 1);
  CHECK(pair.a.deregister_memory(rkey).size() >= 1);
  out.reset();
  CHECK(sent->state != State::kPending);
  CHECK(unmatched->state == State::kFailed);
  CHECK(unmatched->error == kDeregistered);
  CHECK(wait(received) != State::kPending);
  CHECK(error_of(waiting.send(Bytes(100))) == kDeregistered);
  CHECK(later->state == State::kPending);
  CHECK(wait(neighbour.send(Bytes(100), 1)) == State::kDone);
  CHECK(wait(later) == State::kDone);
  neighbour.check(10'000);
}

TEST_CASE("deregistering memory ends the receives of every connection into it") {
  auto in = std::make_unique<Pages>(1 << 20);
  DevicePair pair;
  const Joined used(pair.a, pair.b);
  const Joined neighbour(pair.a, pair.b);
  const std::uint32_t rkey = pair.b.register_memory(in->bytes().data(), in->bytes().size());
  const auto received = submit_registered(pair.b, used.from, Request::Kind::kReceive, in->bytes(), rkey);
  CHECK(pair.b.deregister_memory(rkey) == std::vector<IpAddress>{kA});
  in.reset();
  CHECK(received->state == State::kFailed);
  CHECK(received->error == kDeregistered);
  CHECK(received->failure == Failure::kClosed);
  CHECK(error_of(used.send(Bytes(1 << 20))) == "127.0.0.2 closed the connection");
  neighbour.check(10'000);
}

TEST_CASE("memory without messages in progress is deregistered and closes nothing") {
  Bytes memory(1000);
  DevicePair pair;
  const Joined joined(pair.a, pair.b);
  const std::uint32_t rkey = pair.a.register_memory(memory.data(), memory.size());
  CHECK(pair.a.deregister_memory(rkey).empty());
  joined.check(1000);
}

TEST_CASE("memory that is not mapped, or only in part, is refused") {
  Device device(options(kA));
  // Far below the addresses that the kernel gives to other threads, so that the hole stays one. Both AddressSanitizer
  // and ThreadSanitizer leave these addresses to programs.
  Pages pages(4 * 4096, reinterpret_cast<void*>(0x4000'0000));  // NOLINT(performance-no-int-to-ptr)
  std::byte* const base = pages.bytes().data();
  pages.unmap_page(4096);
  CHECK_THROWS_WITH_AS(static_cast<void>(device.register_memory(base, 3 * 4096)),
                       "cannot register 12288 bytes of memory: part of the range is not mapped in this process",
                       std::invalid_argument);
  CHECK_THROWS_AS(static_cast<void>(device.register_memory(base + 5000, 1)), std::invalid_argument);
  CHECK_THROWS_AS(static_cast<void>(device.register_memory(base, UINT64_MAX)), std::invalid_argument);
  CHECK(device.register_memory(base + 100, 3996) != 0);
  CHECK(device.register_memory(nullptr, 0) != 0);
}

TEST_CASE("close_and_wait waits for a live peer longer than the retry time") {
  DeviceOptions slow = options(kA, 4);
  slow.line_rate_bps = 16e6;  // 6 MiB take 3.1 s
  slow.flowlet_bytes = 2 << 20;
  // A wait that missed the peer's acknowledgements would end a second after this. Less and a busy machine, which delays
  // all of a lane's acknowledgements by hundreds of milliseconds, would make a lane give the live peer up.
  slow.retry_time = 1500 * kMillisecond;
  Device a(slow);
  Device b(options(kB));
  const Joined joined(a, b);
  const Joined neighbour(a, b);
  const auto received = joined.receive(Bytes(6 << 20));
  const auto sent = joined.send(Bytes(6 << 20));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(a.close_and_wait(joined.to, {sent}, Device::Closing::kSent));
  CHECK(sent->state != State::kPending);
  CHECK(wait(received) != State::kPending);
  neighbour.check(100);
}

}  // namespace
}  // namespace paralet
