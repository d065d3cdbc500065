// SPDX-License-Identifier: Apache-2.0
// The functions of the C library that programs call through this library (LD_PRELOAD).
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <new>

#include "agent_link.hpp"
#include "program_settings.hpp"
#include "sockets.hpp"

namespace paralet::pin {
namespace {

template <typename Function>
Function* next(const char* name, Function* /*its type*/) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

struct Functions {
  decltype(&::connect) connect = next("connect", &::connect);
  decltype(&::bind) bind = next("bind", &::bind);
  decltype(&::listen) listen = next("listen", &::listen);
  decltype(&::getsockname) getsockname = next("getsockname", &::getsockname);
  decltype(&::setsockopt) setsockopt = next("setsockopt", &::setsockopt);
  decltype(&::socket) socket = next("socket", &::socket);
  decltype(&::sendto) sendto = next("sendto", &::sendto);
  decltype(&::sendmsg) sendmsg = next("sendmsg", &::sendmsg);
  decltype(&::sendmmsg) sendmmsg = next("sendmmsg", &::sendmmsg);
};

const Functions& real() {
  static const Functions functions;
  return functions;
}

/// Those of the program; nullptr where nothing is pinned.
Sockets* sockets() {
  alignas(Sockets) static std::byte room[sizeof(Sockets)];  // never destroyed: calls come until the process is gone
  static Sockets* const made = [&]() -> Sockets* {
    const AgentLink agent;
    if (!agent.on()) return nullptr;
    const ProgramSettings settings = program_settings();
    return ::new (room) Sockets(agent, settings.networks,
                                {.connect = real().connect,
                                 .bind = real().bind,
                                 .getsockname = real().getsockname,
                                 .setsockopt = real().setsockopt},
                                settings.wait);
  }();
  return made;
}

/// Before main, while the program has one thread.
[[gnu::constructor]] void prepare() {
  real();
  sockets();
}

}  // namespace
}  // namespace paralet::pin

namespace pin = paralet::pin;

#define PARALET_EXPORT extern "C" [[gnu::visibility("default")]]

PARALET_EXPORT int connect(int fd, const sockaddr* to, socklen_t length) {
  auto* sockets = pin::sockets();
  return sockets == nullptr ? pin::real().connect(fd, to, length) : sockets->connect(fd, to, length);
}

PARALET_EXPORT int bind(int fd, const sockaddr* to, socklen_t length) noexcept {
  auto* sockets = pin::sockets();
  return sockets == nullptr ? pin::real().bind(fd, to, length) : sockets->bind(fd, to, length);
}

PARALET_EXPORT int listen(int fd, int backlog) noexcept {
  if (auto* sockets = pin::sockets()) sockets->settle(fd);
  return pin::real().listen(fd, backlog);
}

PARALET_EXPORT int getsockname(int fd, sockaddr* name, socklen_t* length) noexcept {
  if (auto* sockets = pin::sockets()) sockets->settle(fd);
  return pin::real().getsockname(fd, name, length);
}

PARALET_EXPORT int setsockopt(int fd, int level, int name, const void* value, socklen_t length) noexcept {
  if (level == IPPROTO_IP && name == IP_BIND_ADDRESS_NO_PORT) {
    if (auto* sockets = pin::sockets()) sockets->leaving_port_out(fd);
  }
  return pin::real().setsockopt(fd, level, name, value, length);
}

PARALET_EXPORT int socket(int domain, int type, int protocol) noexcept {
  const int fd = pin::real().socket(domain, type, protocol);
  if (auto* sockets = pin::sockets()) sockets->made(fd, domain, type);
  return fd;
}

PARALET_EXPORT ssize_t sendto(int fd, const void* data, size_t size, int flags, const sockaddr* to, socklen_t length) {
  if (auto* sockets = pin::sockets()) sockets->sending(fd, to, length);
  return pin::real().sendto(fd, data, size, flags, to, length);
}

PARALET_EXPORT ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  if (auto* sockets = pin::sockets(); sockets != nullptr && message != nullptr) {
    sockets->sending(fd, static_cast<const sockaddr*>(message->msg_name), message->msg_namelen);
  }
  return pin::real().sendmsg(fd, message, flags);
}

PARALET_EXPORT int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  if (auto* sockets = pin::sockets(); sockets != nullptr && messages != nullptr && count > 0) {
    sockets->sending(fd, static_cast<const sockaddr*>(messages->msg_hdr.msg_name), messages->msg_hdr.msg_namelen);
  }
  return pin::real().sendmmsg(fd, messages, count, flags);
}
