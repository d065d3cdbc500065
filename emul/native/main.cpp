// SPDX-License-Identifier: Apache-2.0
// paralet-link-delay MARK: delays packets of emulated links, in the network namespace in which it runs.
//
// Rules of the kernel lead packets to the tap of their port instead of the port. They wait here, and leave by the port
// with the packet mark MARK. Commands come from standard input (commands.hpp) and are answered by one line each: "ok",
// the counts, or "error" and the reason. The program ends, and its taps with it, when standard input ends.

#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <deque>
#include <exception>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "commands.hpp"
#include "delay_queue.hpp"
#include "ports.hpp"

namespace paralet::link_delay {
namespace {

constexpr std::size_t kMostBytes = std::size_t{256} << 20;
constexpr std::size_t kFrameBytes = 1 << 17;  // longer than any frame
constexpr int kBatch = 64;                    // frames of a port before the others have their turn
constexpr int64_t kSecond = 1'000'000'000;

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

class Shim {
 public:
  explicit Shim(uint32_t mark) : mark_(mark), room_(kFrameBytes) {}

  void run() {
    while (wait()) {
      for (std::size_t number = 0; number < ports_.size(); ++number) {
        if (polled_[number + 1].revents != 0) {
          receive(number);
        }
      }
      const int64_t now = now_ns();
      while (auto packet = queue_.pop(now)) {
        Port& port = ports_[packet->port];
        ++(port.send(packet->frame) ? port.sent : port.dropped);
      }
    }
  }

 private:
  // Waits for frames, commands and the next packet that is due. Carries out commands. False at the end of the input.
  bool wait() {
    polled_.assign(1, {STDIN_FILENO, POLLIN, 0});
    for (const Port& port : ports_) {
      polled_.push_back({port.tap(), POLLIN, 0});
    }
    const auto due = queue_.next_due_ns();
    const int64_t left = due ? std::max<int64_t>(0, *due - now_ns()) : 0;
    const timespec limit{left / kSecond, left % kSecond};
    if (ppoll(polled_.data(), polled_.size(), due ? &limit : nullptr, nullptr) < 0) {
      return errno == EINTR;
    }
    return polled_[0].revents == 0 || read_commands();
  }

  void receive(std::size_t number) {
    Port& port = ports_[number];
    for (int n = 0; n < kBatch; ++n) {
      const auto frame = port.receive(room_);
      if (frame.empty()) {
        return;
      }
      bool late = false;
      const int64_t due = due_ns(port.delay, now_ns(), random_, late);
      port.late += late ? 1 : 0;
      port.dropped += queue_.push(due, number, frame) ? 0 : 1;
    }
  }

  bool read_commands() {
    std::array<char, 4096> text{};
    const ssize_t length = read(STDIN_FILENO, text.data(), text.size());
    if (length <= 0) {
      return false;
    }
    input_.append(text.data(), static_cast<std::size_t>(length));
    for (std::size_t end = 0; (end = input_.find('\n')) != std::string::npos; input_.erase(0, end + 1)) {
      std::cout << answer(input_.substr(0, end)) << std::endl;
    }
    return true;
  }

  std::string answer(const std::string& line) {
    try {
      const auto command = parse(line);
      if (const auto* set = std::get_if<Set>(&command)) {
        port(*set).delay = set->delay;
        return "ok";
      }
      std::ostringstream counts;
      for (const Port& port : ports_) {
        counts << port.interface() << ' ' << port.sent << ' ' << port.late << ' ' << port.dropped << ' ';
      }
      return counts.str();
    } catch (const std::exception& error) {
      return std::string("error ") + error.what();
    }
  }

  // The port of a command; a new one if the interface has none yet.
  Port& port(const Set& set) {
    const auto found =
        std::find_if(ports_.begin(), ports_.end(), [&](const Port& port) { return port.interface() == set.interface; });
    return found != ports_.end() ? *found : ports_.emplace_back(set.interface, set.tap, mark_);
  }

  uint32_t mark_;
  std::vector<std::byte> room_;
  std::deque<Port> ports_;
  std::vector<pollfd> polled_;
  DelayQueue queue_{kMostBytes};
  std::mt19937_64 random_{std::random_device{}()};
  std::string input_;
};

}  // namespace
}  // namespace paralet::link_delay

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: paralet-link-delay MARK\n";
    return 2;
  }
  prctl(PR_SET_TIMERSLACK, 1UL);  // the default lets every wait last 50 us longer
  try {
    paralet::link_delay::Shim(static_cast<uint32_t>(std::stoul(argv[1]))).run();
  } catch (const std::exception& error) {
    std::cerr << "paralet-link-delay: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
