// SPDX-License-Identifier: Apache-2.0
// An agent for tests: a thread that answers requests as it is told.
#pragma once

#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent_protocol.hpp"
#include "base/file_descriptor.hpp"

namespace paralet::pin {

class FakeAgent {
 public:
  /// `answer` gives the reply to a request; nothing: none, and the program waits in vain.
  explicit FakeAgent(std::function<std::optional<Reply>(const Request&)> answer) : answer_(std::move(answer)) {
    char folder[] = "/tmp/paralet-pin-test-XXXXXX";
    folder_ = ::mkdtemp(folder);
    path_ = folder_ + "/agent";
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    std::memcpy(at.sun_path, path_.data(), path_.size());
    listener_ = FileDescriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    static_cast<void>(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at));
    static_cast<void>(::listen(listener_.get(), 1024));
    thread_ = std::thread([this] { run(); });
  }
  FakeAgent(const FakeAgent&) = delete;
  FakeAgent& operator=(const FakeAgent&) = delete;
  ~FakeAgent() {
    stop_ = true;
    thread_.join();
    ::unlink(path_.c_str());
    ::rmdir(folder_.c_str());
  }

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::vector<Request> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void run() {
    std::vector<FileDescriptor> held;
    while (!stop_) {
      pollfd waited{.fd = listener_.get(), .events = POLLIN, .revents = 0};
      if (::poll(&waited, 1, 10) != 1) continue;
      FileDescriptor program(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      Request request;
      if (::recv(program.get(), &request, sizeof request, MSG_WAITALL) != sizeof request) continue;
      {
        const std::lock_guard lock(mutex_);
        requests_.push_back(request);
      }
      if (const auto reply = answer_(request)) {
        ::send(program.get(), &*reply, sizeof *reply, MSG_NOSIGNAL);
      } else {
        held.push_back(std::move(program));
      }
    }
  }

  std::function<std::optional<Reply>(const Request&)> answer_;
  std::string folder_;
  std::string path_;
  FileDescriptor listener_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::vector<Request> requests_;
  std::thread thread_;
};

}  // namespace paralet::pin
