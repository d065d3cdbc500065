/* SPDX-License-Identifier: Apache-2.0
 *
 * Rank 0 listens on loopback, everybody else connects to it and shows the secret of the unique id.
 */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "stub.h"

struct id {
  char secret[32];
  uint16_t port; /* of loopback, in network order */
};

struct hello {
  char secret[32];
  int rank;
};

static int listener = -1; /* of the id that this process has made */

static ncclResult_t all_of(ssize_t (*move)(int, void*, size_t, int), int fd, void* data, size_t size) {
  for (size_t done = 0; done < size;) {
    ssize_t moved = move(fd, (char*)data + done, size - done, MSG_NOSIGNAL);
    if (moved <= 0) {
      WARN("bootstrap: a rank is gone or silent");
      return ncclRemoteError;
    }
    done += (size_t)moved;
  }
  return ncclSuccess;
}

static ssize_t send_some(int fd, void* data, size_t size, int flags) { return send(fd, data, size, flags); }

static ncclResult_t say(int fd, const void* data, size_t size) { return all_of(send_some, fd, (void*)data, size); }

static ncclResult_t hear(int fd, void* data, size_t size) { return all_of(recv, fd, data, size); }

static void limit_waiting(int fd) {
  struct timeval limit = {.tv_sec = 60};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

ncclResult_t bootstrap_new_id(char bytes[128]) {
  struct id id;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0 || bind(listener, (struct sockaddr*)&address, sizeof address) != 0 || listen(listener, 1024) != 0 ||
      getsockname(listener, (struct sockaddr*)&address, &length) != 0 ||
      getrandom(id.secret, sizeof id.secret, 0) != sizeof id.secret) {
    WARN("bootstrap: cannot listen on loopback");
    return ncclSystemError;
  }
  limit_waiting(listener);
  id.port = address.sin_port;
  memset(bytes, 0, 128);
  memcpy(bytes, &id, sizeof id);
  return ncclSuccess;
}

static ncclResult_t gather_ranks(struct bootstrap* bootstrap, const struct id* id) {
  for (int missing = bootstrap->ranks - 1; missing > 0;) {
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) {
      WARN("bootstrap: %d ranks did not come", missing);
      return ncclSystemError;
    }
    limit_waiting(fd);
    struct hello hello;
    if (hear(fd, &hello, sizeof hello) != ncclSuccess || memcmp(hello.secret, id->secret, sizeof hello.secret) != 0 ||
        hello.rank <= 0 || hello.rank >= bootstrap->ranks || bootstrap->sockets[hello.rank] >= 0) {
      close(fd); /* a stranger */
      continue;
    }
    bootstrap->sockets[hello.rank] = fd;
    --missing;
  }
  close(listener);
  listener = -1;
  return ncclSuccess;
}

static ncclResult_t find_root(struct bootstrap* bootstrap, const struct id* id) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = id->port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  bootstrap->sockets[0] = fd;
  if (fd < 0 || connect(fd, (struct sockaddr*)&address, sizeof address) != 0) {
    WARN("bootstrap: cannot connect to rank 0");
    return ncclSystemError;
  }
  limit_waiting(fd);
  struct hello hello = {.rank = bootstrap->rank};
  memcpy(hello.secret, id->secret, sizeof hello.secret);
  return say(fd, &hello, sizeof hello);
}

ncclResult_t bootstrap_join(struct bootstrap* bootstrap, const char bytes[128], int rank, int ranks) {
  struct id id;
  memcpy(&id, bytes, sizeof id);
  *bootstrap = (struct bootstrap){rank, ranks, malloc((size_t)ranks * sizeof(int))};
  if (bootstrap->sockets == NULL) return ncclSystemError;
  for (int i = 0; i < ranks; ++i) bootstrap->sockets[i] = -1;
  return rank == 0 ? gather_ranks(bootstrap, &id) : find_root(bootstrap, &id);
}

ncclResult_t bootstrap_all_gather(struct bootstrap* bootstrap, const void* mine, void* all, size_t size) {
  size_t total = size * (size_t)bootstrap->ranks;
  if (bootstrap->rank != 0) {
    CHECK(say(bootstrap->sockets[0], mine, size));
    return hear(bootstrap->sockets[0], all, total);
  }
  memcpy(all, mine, size);
  for (int i = 1; i < bootstrap->ranks; ++i) CHECK(hear(bootstrap->sockets[i], (char*)all + (size_t)i * size, size));
  for (int i = 1; i < bootstrap->ranks; ++i) CHECK(say(bootstrap->sockets[i], all, total));
  return ncclSuccess;
}

void bootstrap_leave(struct bootstrap* bootstrap) {
  for (int i = 0; i < bootstrap->ranks; ++i) {
    if (bootstrap->sockets[i] >= 0) close(bootstrap->sockets[i]);
  }
  free(bootstrap->sockets);
}
