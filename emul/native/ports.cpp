// SPDX-License-Identifier: Apache-2.0
#include "ports.hpp"

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_packet.h>
#include <linux/if_tun.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace paralet::link_delay {
namespace {

// Frames that wait in a tap while this program does not run; the default of 500 is less than a burst of small ones.
constexpr int kTapFrames = 8192;
// Frames that wait in the shaped queue of an interface count against the socket that sent them.
constexpr int kSendBytes = 1 << 26;

int checked(int result, const std::string& what) {
  if (result < 0) {
    throw std::system_error(errno, std::generic_category(), what);
  }
  return result;
}

ifreq request_for(const std::string& name) {
  ifreq request{};
  name.copy(request.ifr_name, sizeof request.ifr_name - 1);
  return request;
}

Descriptor open_tap(const std::string& name) {
  Descriptor tap(checked(open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC), "/dev/net/tun"));
  ifreq request = request_for(name);
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  checked(ioctl(tap.get(), TUNSETIFF, &request), name);
  const Descriptor control(checked(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), "socket"));
  request = request_for(name);
  request.ifr_qlen = kTapFrames;
  checked(ioctl(control.get(), SIOCSIFTXQLEN, &request), name);
  request = request_for(name);
  request.ifr_flags = IFF_UP;
  checked(ioctl(control.get(), SIOCSIFFLAGS, &request), name);
  return tap;
}

Descriptor open_socket(const std::string& interface, uint32_t mark) {
  Descriptor sender(checked(socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), "packet socket"));
  checked(setsockopt(sender.get(), SOL_SOCKET, SO_MARK, &mark, sizeof mark), "SO_MARK");
  checked(setsockopt(sender.get(), SOL_SOCKET, SO_SNDBUFFORCE, &kSendBytes, sizeof kSendBytes), "SO_SNDBUFFORCE");
  ifreq request = request_for(interface);
  checked(ioctl(sender.get(), SIOCGIFINDEX, &request), interface);
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_ifindex = request.ifr_ifindex;
  checked(bind(sender.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), interface);
  return sender;
}

}  // namespace

Descriptor::~Descriptor() {
  if (value_ >= 0) {
    close(value_);
  }
}

Port::Port(std::string interface, const std::string& tap, uint32_t mark)
    : interface_(std::move(interface)), tap_(open_tap(tap)), socket_(open_socket(interface_, mark)) {}

std::span<const std::byte> Port::receive(std::span<std::byte> room) const {
  const ssize_t length = read(tap_.get(), room.data(), room.size());
  return room.first(length > 0 ? static_cast<std::size_t>(length) : 0);
}

bool Port::send(std::span<const std::byte> frame) const {
  return ::send(socket_.get(), frame.data(), frame.size(), 0) == static_cast<ssize_t>(frame.size());
}

}  // namespace paralet::link_delay
