// SPDX-License-Identifier: Apache-2.0
// listen, connect, accept.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rules.h"

enum { MANY = 64, CALLS = 1000 };

/// Uses a comm without a receiver: isend or test must fail eventually, and no request may be done.
static void expect_useless(struct end* end, void* comm) {
  struct region region = region_register(end, comm, 64);
  void* request = NULL;
  struct waiting waiting = {0};
  for (;;) {
    int done = 0;
    const ncclResult_t result = request ? end->net->test(request, &done, NULL)
                                        : end->net->isend(comm, region.bytes, 64, 1, region.mr, NULL, &request);
    if (result != ncclSuccess) break;
    expect(!done, "expected a send without a receiver to fail");
    poll_again(&waiting, "an error from a comm without a receiver");
  }
  region_release(end, comm, &region);
}

// The connector calls connect() before the listener calls anything.

static void connect_first_listener(struct end* end) {
  struct handle handle;
  void* listen_comm = listen_at(end, &handle);
  send_to_other_end(end, handle.bytes, sizeof handle.bytes);
  synchronize(end);
  void* comm = accept_one(end, listen_comm);
  expect_success(end->net->close_listen(listen_comm));
  exchange(end, comm, 1000, 1);
  close_connection(end, comm);
}

static void connect_first_connector(struct end* end) {
  struct handle handle;
  void* comm = NULL;
  receive_from_other_end(end, handle.bytes, sizeof handle.bytes);
  step("connect() before the peer accepts");
  for (int i = 0; i < 50 && !comm; i++) {
    expect_success(end->net->connect(end->ctx, end->dev, handle.bytes, &comm));
    sleep_s(1e-3);
  }
  synchronize(end);
  if (!comm) comm = connect_to(end, &handle);
  exchange(end, comm, 1000, 1);
  close_connection(end, comm);
}

// The listener calls accept() before the connector calls anything: a blocking accept() would never return.

static void accept_first_listener(struct end* end) {
  struct handle handle;
  void* listen_comm = listen_at(end, &handle);
  step("accept() without a connect()");
  for (int i = 0; i < CALLS; i++) {
    void* comm = listen_comm;  // accept() must set it to NULL
    expect_success(end->net->accept(listen_comm, &comm));
    expect(!comm, "expected a NULL comm without a connect()");
  }
  send_to_other_end(end, handle.bytes, sizeof handle.bytes);
  void* comm = accept_one(end, listen_comm);
  // One connection gives one comm, however often connect() was called.
  for (int i = 0; i < 50; i++) {
    void* another = NULL;
    expect_success(end->net->accept(listen_comm, &another));
    expect(!another, "expected one comm for one connection, accept() returned a second one");
    sleep_s(1e-3);
  }
  expect_success(end->net->close_listen(listen_comm));
  exchange(end, comm, 1000, 2);
  close_connection(end, comm);
}

static void accept_first_connector(struct end* end) {
  struct handle handle;
  receive_from_other_end(end, handle.bytes, sizeof handle.bytes);
  void* comm = connect_to(end, &handle);
  exchange(end, comm, 1000, 2);
  close_connection(end, comm);
}

// One call of each, alternating.

static void* in_turns(struct end* end, void* listen_comm, struct handle* handle) {
  void* comm = NULL;
  struct waiting waiting = {0};
  for (;;) {
    if (!comm && listen_comm) expect_success(end->net->accept(listen_comm, &comm));
    if (!comm && !listen_comm) expect_success(end->net->connect(end->ctx, end->dev, handle->bytes, &comm));
    char here = comm != NULL;
    char there = 0;
    send_to_other_end(end, &here, 1);
    receive_from_other_end(end, &there, 1);
    if (here && there) return comm;
    poll_again(&waiting, "alternating connect() and accept() to return comms");
  }
}

static void in_turns_listener(struct end* end) {
  struct handle handle;
  void* listen_comm = listen_at(end, &handle);
  send_to_other_end(end, handle.bytes, sizeof handle.bytes);
  void* comm = in_turns(end, listen_comm, NULL);
  expect_success(end->net->close_listen(listen_comm));
  exchange(end, comm, 1000, 3);
  close_connection(end, comm);
}

static void in_turns_connector(struct end* end) {
  struct handle handle;
  receive_from_other_end(end, handle.bytes, sizeof handle.bytes);
  void* comm = in_turns(end, NULL, &handle);
  exchange(end, comm, 1000, 3);
  close_connection(end, comm);
}

// The listening process is stopped and does not answer: a blocking connect() would never return.

static void stopped_listener(struct end* end) {
  struct handle handle;
  void* listen_comm = listen_at(end, &handle);
  const pid_t pid = getpid();
  send_to_other_end(end, handle.bytes, sizeof handle.bytes);
  send_to_other_end(end, &pid, sizeof pid);
  void* comm = accept_one(end, listen_comm);
  expect_success(end->net->close_listen(listen_comm));
  exchange(end, comm, 1000, 4);
  close_connection(end, comm);
}

static void stopped_connector(struct end* end) {
  struct handle handle;
  pid_t peer = 0;
  receive_from_other_end(end, handle.bytes, sizeof handle.bytes);
  receive_from_other_end(end, &peer, sizeof peer);
  stop_process(peer);
  void* comm = NULL;
  step("connect() to a process that is stopped");
  for (int i = 0; i < CALLS && !comm; i++) expect_success(end->net->connect(end->ctx, end->dev, handle.bytes, &comm));
  kill(peer, SIGCONT);
  if (!comm) comm = connect_to(end, &handle);
  exchange(end, comm, 1000, 4);
  close_connection(end, comm);
}

// The handle is plain bytes: it is copied over the bootstrap network, and connect() keeps its state in the copy.

static void many_listener(struct end* end, int count) {
  struct handle handle;
  void* listen_comm = listen_at(end, &handle);
  send_to_other_end(end, handle.bytes, sizeof handle.bytes);
  memset(&handle, 0, sizeof handle);  // the original must not be needed
  void* comms[MANY];
  char seen[MANY] = {0};
  step("accept() of %d connections", count);
  for (int i = 0; i < count; i++) comms[i] = accept_one(end, listen_comm);
  expect_success(end->net->close_listen(listen_comm));
  step("a message over each of %d connections", count);
  for (int i = 0; i < count; i++) {
    int number = -1;
    struct region region = region_register(end, comms[i], 4096);
    finish_with(end, receive_one(end, comms[i], region.bytes, 4096, 1, region.mr), 4096, "a received message");
    memcpy(&number, region.bytes, sizeof number);
    expect(number >= 0 && number < count && !seen[number], "expected each connection once, got number %d", number);
    seen[number] = 1;
    check_filled(region.bytes + 8, 4088, (uint64_t)number, "a message");
    region_release(end, comms[i], &region);
  }
  synchronize(end);
  for (int i = 0; i < count; i++) close_connection(end, comms[i]);
}

static void many_connector(struct end* end, int count) {
  struct handle handle;
  receive_from_other_end(end, handle.bytes, sizeof handle.bytes);
  void* comms[MANY] = {NULL};
  unsigned char copies[MANY][HANDLE_BYTES + 1];  // unaligned, each with its own state
  for (int i = 0; i < count; i++) memcpy(copies[i] + 1, handle.bytes, HANDLE_BYTES);
  struct waiting waiting = {0};
  step("connect() of %d connections at once", count);
  for (int ready = 0; ready < count;) {
    ready = 0;
    for (int i = 0; i < count; i++) {
      if (!comms[i]) expect_success(end->net->connect(end->ctx, end->dev, copies[i] + 1, &comms[i]));
      ready += comms[i] != NULL;
    }
    poll_again(&waiting, "connect() to return a comm for each of many connections");
  }
  for (int i = 0; i < count; i++) {
    for (int other = 0; other < i; other++) expect(comms[i] != comms[other], "expected a comm per connection");
  }
  struct region regions[MANY];
  void* requests[MANY];
  step("a message over each of %d connections", count);
  for (int i = 0; i < count; i++) {
    regions[i] = region_register(end, comms[i], 4096);
    memset(regions[i].bytes, 0, 8);
    memcpy(regions[i].bytes, &i, sizeof i);
    fill(regions[i].bytes + 8, 4088, (uint64_t)i);
    requests[i] = NULL;
  }
  // The listener receives in another order, so no send may block another one.
  waiting = (struct waiting){0};
  for (int left = count; left > 0;) {
    left = 0;
    for (int i = 0; i < count; i++) {
      if (!requests[i]) requests[i] = try_send(end, comms[i], regions[i].bytes, 4096, 1, regions[i].mr);
      left += requests[i] == NULL;
    }
    poll_again(&waiting, "isend() to accept a message on each of many connections");
  }
  for (int i = 0; i < count; i++) finish_with(end, requests[i], 4096, "a sent message");
  synchronize(end);
  for (int i = 0; i < count; i++) {
    region_release(end, comms[i], &regions[i]);
    close_connection(end, comms[i]);
  }
}

static void eight_listener(struct end* end) { many_listener(end, 8); }
static void eight_connector(struct end* end) { many_connector(end, 8); }
static void sixty_four_listener(struct end* end) { many_listener(end, MANY); }
static void sixty_four_connector(struct end* end) { many_connector(end, MANY); }

// NCCL closes the listen comm as soon as accept() returns a comm, perhaps before connect() does.

static void early_close_listener(struct end* end) {
  void* comm = open_connection(end);  // closes the listen comm
  synchronize(end);
  exchange(end, comm, 1000, 5);
  close_connection(end, comm);
}

static void early_close_connector(struct end* end) {
  struct handle handle;
  receive_from_other_end(end, handle.bytes, sizeof handle.bytes);
  void* comm = NULL;
  expect_success(end->net->connect(end->ctx, end->dev, handle.bytes, &comm));
  // Makes no call while the listener accepts and closes: the plugin must progress by itself.
  synchronize(end);
  if (!comm) comm = connect_to(end, &handle);
  exchange(end, comm, 1000, 5);
  close_connection(end, comm);
}

// The listener accepts and closes before connect() is called again: connect() returns an error, or a comm whose sends
// fail.

static void gone_listener(struct end* end) {
  void* comm = open_connection(end);
  close_connection(end, comm);
  synchronize(end);
  synchronize(end);
}

static void gone_connector(struct end* end) {
  struct handle handle;
  receive_from_other_end(end, handle.bytes, sizeof handle.bytes);
  void* comm = NULL;
  expect_success(end->net->connect(end->ctx, end->dev, handle.bytes, &comm));
  synchronize(end);
  struct waiting waiting = {0};
  bool failed = false;
  step("connect() to a peer that has accepted and closed");
  while (!comm && !failed) {
    failed = end->net->connect(end->ctx, end->dev, handle.bytes, &comm) != ncclSuccess;
    if (!comm && !failed) poll_again(&waiting, "connect() to return a comm or an error");
  }
  if (comm) {
    expect_useless(end, comm);
    close_connection(end, comm);
  }
  synchronize(end);
}

// connect() must fail, perhaps after calls without a comm. It must not return a comm, crash or hang.
static bool is_refused(struct end* end, struct handle* handle, const char* what) {
  struct waiting waiting = {0};
  for (;;) {
    void* comm = NULL;
    if (end->net->connect(end->ctx, end->dev, handle->bytes, &comm) != ncclSuccess) return true;
    if (comm) {
      close_connection(end, comm);
      return false;
    }
    poll_again(&waiting, what);
  }
}

static void wrong_handle(struct end* end) {
  struct handle handle;
  for (uint64_t seed = 0; seed < 64; seed++) {
    fill(handle.bytes, sizeof handle.bytes, seed);
    if (seed == 0) memset(handle.bytes, 0, sizeof handle.bytes);
    if (seed == 1) memset(handle.bytes, 0xFF, sizeof handle.bytes);
    expect(is_refused(end, &handle, "an error from connect() with a wrong handle"),
           "expected connect() to refuse a handle of random bytes (seed %d)", (int)seed);
  }
  // The plugin still works.
  struct pair pair = open_pair(end);
  exchange_self(end, &pair, 100, 6);
  close_pair(end, &pair);
}

// The handle of a closed listen comm.

static void stale_listener(struct end* end) {
  struct handle handle;
  void* listen_comm = listen_at(end, &handle);
  expect_success(end->net->close_listen(listen_comm));
  send_to_other_end(end, handle.bytes, sizeof handle.bytes);
  synchronize(end);
}

static void stale_connector(struct end* end) {
  struct handle handle;
  receive_from_other_end(end, handle.bytes, sizeof handle.bytes);
  step("connect() to a closed listen comm");
  expect(is_refused(end, &handle, "an error from connect() to a closed listen comm"),
         "expected connect() to fail, its listen comm is closed");
  synchronize(end);
}

// A listen comm is closed with connects in progress. Each of them fails or returns a comm whose sends fail.

static void pending_listener(struct end* end) {
  struct handle handle;
  void* listen_comm = listen_at(end, &handle);
  send_to_other_end(end, handle.bytes, sizeof handle.bytes);
  synchronize(end);
  step("closeListen() with connects pending");
  expect_success(end->net->close_listen(listen_comm));
  synchronize(end);
  synchronize(end);
  void* comm = open_connection(end);  // other listen comms of the device still work
  exchange(end, comm, 1000, 7);
  close_connection(end, comm);
}

static void pending_connector(struct end* end) {
  struct handle handle;
  receive_from_other_end(end, handle.bytes, sizeof handle.bytes);
  struct handle copies[8];
  void* comms[8] = {NULL};
  for (int i = 0; i < 8; i++) {
    copies[i] = handle;
    expect_success(end->net->connect(end->ctx, end->dev, copies[i].bytes, &comms[i]));
  }
  synchronize(end);
  synchronize(end);
  step("connects after the listen comm was closed");
  for (int i = 0; i < 8; i++) {
    struct waiting waiting = {0};
    bool failed = false;
    while (!comms[i] && !failed) {
      failed = end->net->connect(end->ctx, end->dev, copies[i].bytes, &comms[i]) != ncclSuccess;
      if (!comms[i] && !failed) poll_again(&waiting, "connect() to a closed listen comm to fail");
    }
    if (failed) continue;
    expect_useless(end, comms[i]);
    close_connection(end, comms[i]);
  }
  synchronize(end);
  void* comm = open_connection(end);
  exchange(end, comm, 1000, 7);
  close_connection(end, comm);
}

static void self(struct end* end) {
  struct pair pair = open_pair(end);
  exchange_self(end, &pair, 100000, 8);
  close_pair(end, &pair);
}

const struct rule connecting_rules[] = {
    {.name = "connect-first",
     .sentence = "connect may come before accept",
     .listener = connect_first_listener,
     .connector = connect_first_connector},
    {.name = "accept-first",
     .sentence = "accept never blocks, returns a NULL comm until a peer connects, and returns one comm per connection",
     .listener = accept_first_listener,
     .connector = accept_first_connector},
    {.name = "connect-in-turns",
     .sentence = "alternating single calls of connect and accept finish",
     .listener = in_turns_listener,
     .connector = in_turns_connector},
    {.name = "connect-never-blocks",
     .sentence = "connect returns while the peer's process is stopped",
     .listener = stopped_listener,
     .connector = stopped_connector,
     .places = TWO_PROCESSES},
    {.name = "connect-to-self",
     .sentence = "one thread connects to itself, as NCCL does when it looks for GPU memory support",
     .alone = self},
    {.name = "connect-8",
     .sentence = "eight connections to one listen comm at once",
     .listener = eight_listener,
     .connector = eight_connector},
    {.name = "connect-64",
     .sentence = "64 connections to one listen comm at once; handles are plain bytes with their own state",
     .listener = sixty_four_listener,
     .connector = sixty_four_connector},
    {.name = "close-listen-early",
     .sentence = "a connection stays open when its listen comm is closed right after accept",
     .listener = early_close_listener,
     .connector = early_close_connector},
    {.name = "closed-at-once",
     .sentence = "connect finishes or fails when the peer has accepted and closed in the meantime",
     .listener = gone_listener,
     .connector = gone_connector},
    {.name = "wrong-handle", .sentence = "a handle of random bytes is an error", .alone = wrong_handle},
    {.name = "stale-handle",
     .sentence = "connect to a closed listen comm is an error",
     .listener = stale_listener,
     .connector = stale_connector,
     .environment = {{"PARALET_RETRY_TIME", "1s"}}},
    {.name = "close-listen-pending",
     .sentence = "closing a listen comm with pending connects fails only these",
     .listener = pending_listener,
     .connector = pending_connector,
     .environment = {{"PARALET_RETRY_TIME", "1s"}}},
    {0}};
