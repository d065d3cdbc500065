// SPDX-License-Identifier: Apache-2.0
// A program for a checker of memory: threads, a forked child that starts a program, close_range and 1,024 sockets.
// usage: clean ADDRESS PORT. It succeeds when all its connections did, and prints the
// source port of the first.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kThreads = 4, kSockets = 1024 };

static struct sockaddr_in server;

static int connected(void) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0 || connect(fd, (const struct sockaddr*)&server, sizeof server) != 0) {
    perror("clean");
    exit(1);
  }
  return fd;
}

static void* connect_twice(void* unused) {
  (void)unused;
  close(connected());
  close(connected());
  return NULL;
}

static void print_port(int fd) {
  struct sockaddr_in own;
  socklen_t length = sizeof own;
  if (getsockname(fd, (struct sockaddr*)&own, &length) != 0) exit(1);
  printf("%d\n", ntohs(own.sin_port));
}

int main(int count, char** words) {
  if (count != 3) return 2;
  server.sin_family = AF_INET;
  server.sin_port = htons((uint16_t)atoi(words[2]));
  if (inet_pton(AF_INET, words[1], &server.sin_addr) != 1) return 2;

  print_port(connected());
  pthread_t threads[kThreads];
  for (int i = 0; i < kThreads; ++i) {
    if (pthread_create(&threads[i], NULL, connect_twice, NULL) != 0) return 1;
  }
  for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);

  const pid_t child = fork();
  if (child == 0) {
    connected();
    execl("/bin/true", "true", NULL);
    _exit(1);
  }
  int status = -1;
  if (waitpid(child, &status, 0) != child || status != 0) return 1;

  const int first = connected();
  if (close_range((unsigned)first, ~0U, 0) != 0) return 1;
  for (int i = 0; i < kSockets; ++i) {
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr*)&server, sizeof server) != 0) return 1;
  }
  connected();
  return 0;
}
