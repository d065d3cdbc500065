// SPDX-License-Identifier: Apache-2.0
// The plugin through the C boundary, with a fake libibverbs: warnings, and GPU memory (properties, registrations and
// flushes).
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "abi.hpp"
#include "comm.hpp"
#include "eventually.hpp"
#include "fake_verbs.hpp"

namespace {

std::atomic<bool> limited{false};  ///< as without privilege where net.core.rmem_max is small

}  // namespace

// In place of the C library's.
extern "C" int setsockopt(int fd, int level, int option, const void* value, socklen_t length) noexcept {
  if (limited && level == SOL_SOCKET && (option == SO_RCVBUF || option == SO_RCVBUFFORCE)) {
    errno = EPERM;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_setsockopt, fd, level, option, value, length));
}

namespace paralet::plugin {
namespace {

constexpr int kBuffer = 901;  // file descriptor of a dma-buf

/// The plugin between init and finalize, with one device.
class Running {
 public:
  Running() {
    ::setenv("PARALET_BACKEND", "verbs", 1);
    ::setenv("PARALET_ADDRESSES", "127.0.0.1", 1);
    REQUIRE(abi::init(&context_, nullptr, nullptr, nullptr) == ncclSuccess);
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() { CHECK(abi::finalize(context_) == ncclSuccess); }

  [[nodiscard]] static int pointers() {
    ncclNetProperties_v12_t properties{};
    REQUIRE(abi::properties(0, &properties) == ncclSuccess);
    return properties.ptrSupport;
  }

 private:
  void* context_ = nullptr;
};

struct Pair {
  Pair() {
    std::array<char, NCCL_NET_HANDLE_MAXSIZE> handle{};
    REQUIRE(abi::listen(nullptr, 0, handle.data(), &listener) == ncclSuccess);
    REQUIRE(eventually([&] {
      if (send == nullptr) REQUIRE(abi::connect(nullptr, 0, nullptr, handle.data(), &send) == ncclSuccess);
      if (receive == nullptr) REQUIRE(abi::accept(listener, &receive) == ncclSuccess);
      return send != nullptr && receive != nullptr;
    }));
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  ~Pair() {
    CHECK(abi::close_send(send) == ncclSuccess);
    CHECK(abi::close_recv(receive) == ncclSuccess);
    CHECK(abi::close_listen(listener) == ncclSuccess);
  }
  void* listener = nullptr;
  void* send = nullptr;
  void* receive = nullptr;
};

bool ends_well(void* request) {
  int done = 0;
  return eventually([&] { return abi::test(request, &done, nullptr) != ncclSuccess || done == 1; }) && done == 1;
}

int socket_warnings = 0;

/// A logger.
void count_socket_warnings(ncclDebugLogLevel level, unsigned long /*flags*/, const char* /*file*/, int /*line*/,
                           const char* format, ...) {
  std::array<char, 1000> text{};
  std::va_list values;
  va_start(values, format);
  std::vsnprintf(text.data(), text.size(), format, values);
  va_end(values);
  if (level == NCCL_LOG_WARN && std::string(text.data()).find("rmem_max") != std::string::npos) ++socket_warnings;
}

TEST_CASE("a small limit of socket buffers is a warning with `soft`, and none with `verbs`, which has no such socket") {
  fake_verbs::reset();
  limited = true;
  for (const bool soft : {true, false}) {
    CAPTURE(soft);
    ::setenv("PARALET_BACKEND", soft ? "soft" : "verbs", 1);
    ::setenv("PARALET_ADDRESSES", "127.0.0.1", 1);
    socket_warnings = 0;
    void* context = nullptr;
    REQUIRE(abi::init(&context, nullptr, count_socket_warnings, nullptr) == ncclSuccess);
    CHECK(socket_warnings == (soft ? 1 : 0));
    CHECK(abi::finalize(context) == ncclSuccess);
  }
  limited = false;
}

TEST_CASE("DMA buffers are in ptrSupport when the NIC can register them") {
  fake_verbs::reset();
  CHECK((Running().pointers() & (NCCL_PTR_HOST | NCCL_PTR_DMABUF)) == (NCCL_PTR_HOST | NCCL_PTR_DMABUF));
  fake_verbs::nic().dmabuf_error = EOPNOTSUPP;
  const Running running;
  CHECK((Running::pointers() & (NCCL_PTR_HOST | NCCL_PTR_DMABUF)) == NCCL_PTR_HOST);
  Pair pair;
  std::byte place{};
  void* memory = &place;
  CHECK(abi::reg_mr_dmabuf(pair.send, &place, 1, NCCL_PTR_CUDA, 0, kBuffer, &memory) == ncclInvalidArgument);
  CHECK(memory == nullptr);
}

TEST_CASE("a flush of a DMA buffer is one READ, a flush of host memory none") {
  fake_verbs::reset();
  std::vector<std::byte> gpu(8192);
  fake_verbs::share_device_memory(kBuffer, gpu.data(), gpu.size());
  const Running running;
  Pair pair;
  std::vector<std::byte> source(100, std::byte{5});
  std::vector<std::byte> host(100);
  void* from = nullptr;
  void* into_host = nullptr;
  void* into_gpu = nullptr;
  REQUIRE(abi::reg_mr(pair.send, source.data(), source.size(), NCCL_PTR_HOST, &from) == ncclSuccess);
  REQUIRE(abi::reg_mr(pair.receive, host.data(), host.size(), NCCL_PTR_HOST, &into_host) == ncclSuccess);
  REQUIRE(abi::reg_mr_dmabuf(pair.receive, gpu.data(), gpu.size(), NCCL_PTR_CUDA, 0, kBuffer, &into_gpu) ==
          ncclSuccess);
  std::array<void*, 2> data{gpu.data() + 50, host.data()};
  std::array<void*, 2> memories{into_gpu, into_host};
  std::array<std::size_t, 2> sizes{100, 100};
  std::array tags{1, 2};
  void* received = nullptr;
  REQUIRE(abi::irecv(pair.receive, 2, data.data(), sizes.data(), tags.data(), memories.data(), nullptr, &received) ==
          ncclSuccess);
  for (const int tag : tags) {
    void* sent = nullptr;
    REQUIRE(abi::isend(pair.send, source.data(), source.size(), tag, from, nullptr, &sent) == ncclSuccess);
    CHECK(ends_well(sent));
  }
  CHECK(ends_well(received));
  CHECK(gpu[149] == std::byte{5});

  std::array lengths{100, 100};
  void* flush = nullptr;
  REQUIRE(abi::iflush(pair.receive, 2, data.data(), lengths.data(), memories.data(), &flush) == ncclSuccess);
  REQUIRE(flush != nullptr);
  CHECK(ends_well(flush));
  CHECK(fake_verbs::record().reads == 1);

  lengths[0] = 0;  // the part in GPU memory is empty
  REQUIRE(abi::iflush(pair.receive, 2, data.data(), lengths.data(), memories.data(), &flush) == ncclSuccess);
  CHECK(flush == nullptr);
  CHECK(fake_verbs::record().reads == 1);

  data[0] = gpu.data() + gpu.size();
  lengths[0] = 1;
  CHECK(abi::iflush(pair.receive, 2, data.data(), lengths.data(), memories.data(), &flush) == ncclInvalidArgument);
  CHECK(abi::dereg_mr(pair.receive, into_gpu) == ncclSuccess);
  CHECK(abi::dereg_mr(pair.receive, into_host) == ncclSuccess);
  CHECK(abi::dereg_mr(pair.send, from) == ncclSuccess);
}

}  // namespace
}  // namespace paralet::plugin
