// SPDX-License-Identifier: Apache-2.0
// Preloaded after the library of `paralet pin`: sends a signal when that library has chosen the port of the program's
// first connection. The signal's handler makes a connection of its own to the same server, which stays open.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>

static struct sockaddr_storage server;
static socklen_t server_length;

static void handle(int number) {
  (void)number;
  connect(socket(server.ss_family, SOCK_STREAM, 0), (struct sockaddr*)&server, server_length);
}

int connect(int fd, const struct sockaddr* to, socklen_t length) {
  int (*next)(int, const struct sockaddr*, socklen_t) =
      (int (*)(int, const struct sockaddr*, socklen_t))dlsym(RTLD_NEXT, "connect");
  if (server_length == 0) {
    memcpy(&server, to, length);
    server_length = length;
    signal(SIGUSR1, handle);
    raise(SIGUSR1);
  }
  return next(fd, to, length);
}
