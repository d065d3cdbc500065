// SPDX-License-Identifier: Apache-2.0
// listen, connect, accept.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rules.h"

enum { MANY = 64, CALLS = 1000 };

/// A comm that nobody receives from: isend or test fails sooner or later, and nothing is ever done.
static void expect_useless(struct end* end, void* comm) {
  struct region region = region_of(end, comm, 64);
  void* request = NULL;
  struct waiting waiting = {0};
  for (;;) {
    int done = 0;
    const ncclResult_t result = request ? end->net->test(request, &done, NULL)
                                        : end->net->isend(comm, region.bytes, 64, 1, region.mr, NULL, &request);
    if (result != ncclSuccess) break;
    expect(!done, "expected a send to fail that nobody can have received");
    wait_a_little(&waiting, "an error from a comm that nobody receives from");
  }
  region_release(end, comm, &region);
}

// The connector calls before the listener does anything.

static void connect_first_listener(struct end* end) {
  struct handle handle;
  void* listen_comm = listen_at(end, &handle);
  tell(end, handle.bytes, sizeof handle.bytes);
  meet(end);
  void* comm = accept_one(end, listen_comm);
  succeed(end->net->close_listen(listen_comm));
  exchange(end, comm, 1000, 1);
  hang_up(end, comm);
}

static void connect_first_connector(struct end* end) {
  struct handle handle;
  void* comm = NULL;
  hear(end, handle.bytes, sizeof handle.bytes);
  step("connect() before the peer accepts");
  for (int i = 0; i < 50 && !comm; i++) {
    succeed(end->net->connect(end->ctx, end->dev, handle.bytes, &comm));
    sleep_s(1e-3);
  }
  meet(end);
  if (!comm) comm = connect_to(end, &handle);
  exchange(end, comm, 1000, 1);
  hang_up(end, comm);
}

// The listener calls before the connector does anything: a blocking accept would never return.

static void accept_first_listener(struct end* end) {
  struct handle handle;
  void* listen_comm = listen_at(end, &handle);
  step("accept() while nobody connects");
  for (int i = 0; i < CALLS; i++) {
    void* comm = listen_comm;  // to be set to NULL
    succeed(end->net->accept(listen_comm, &comm));
    expect(!comm, "expected a NULL comm while nobody connects");
  }
  tell(end, handle.bytes, sizeof handle.bytes);
  void* comm = accept_one(end, listen_comm);
  // One connect is one accept, however often the connector had to call.
  for (int i = 0; i < 50; i++) {
    void* another = NULL;
    succeed(end->net->accept(listen_comm, &another));
    expect(!another, "expected one comm for one connection, accept() gave a second");
    sleep_s(1e-3);
  }
  succeed(end->net->close_listen(listen_comm));
  exchange(end, comm, 1000, 2);
  hang_up(end, comm);
}

static void accept_first_connector(struct end* end) {
  struct handle handle;
  hear(end, handle.bytes, sizeof handle.bytes);
  void* comm = connect_to(end, &handle);
  exchange(end, comm, 1000, 2);
  hang_up(end, comm);
}

// One call each, in turn.

static void* in_turns(struct end* end, void* listen_comm, struct handle* handle) {
  void* comm = NULL;
  struct waiting waiting = {0};
  for (;;) {
    if (!comm && listen_comm) succeed(end->net->accept(listen_comm, &comm));
    if (!comm && !listen_comm) succeed(end->net->connect(end->ctx, end->dev, handle->bytes, &comm));
    char here = comm != NULL;
    char there = 0;
    tell(end, &here, 1);
    hear(end, &there, 1);
    if (here && there) return comm;
    wait_a_little(&waiting, "connect() and accept() in turns to give comms");
  }
}

static void in_turns_listener(struct end* end) {
  struct handle handle;
  void* listen_comm = listen_at(end, &handle);
  tell(end, handle.bytes, sizeof handle.bytes);
  void* comm = in_turns(end, listen_comm, NULL);
  succeed(end->net->close_listen(listen_comm));
  exchange(end, comm, 1000, 3);
  hang_up(end, comm);
}

static void in_turns_connector(struct end* end) {
  struct handle handle;
  hear(end, handle.bytes, sizeof handle.bytes);
  void* comm = in_turns(end, NULL, &handle);
  exchange(end, comm, 1000, 3);
  hang_up(end, comm);
}

// The listening process is stopped: it answers nothing, and a blocking connect would never return.

static void stopped_listener(struct end* end) {
  struct handle handle;
  void* listen_comm = listen_at(end, &handle);
  const pid_t pid = getpid();
  tell(end, handle.bytes, sizeof handle.bytes);
  tell(end, &pid, sizeof pid);
  void* comm = accept_one(end, listen_comm);
  succeed(end->net->close_listen(listen_comm));
  exchange(end, comm, 1000, 4);
  hang_up(end, comm);
}

static void stopped_connector(struct end* end) {
  struct handle handle;
  pid_t peer = 0;
  hear(end, handle.bytes, sizeof handle.bytes);
  hear(end, &peer, sizeof peer);
  stop_process(peer);
  void* comm = NULL;
  step("connect() to a process that is stopped");
  for (int i = 0; i < CALLS && !comm; i++) succeed(end->net->connect(end->ctx, end->dev, handle.bytes, &comm));
  kill(peer, SIGCONT);
  if (!comm) comm = connect_to(end, &handle);
  exchange(end, comm, 1000, 4);
  hang_up(end, comm);
}

// The handle is bytes: it is copied over the bootstrap network, and its state moves in the connector's copy alone.

static void many_listener(struct end* end, int count) {
  struct handle handle;
  void* listen_comm = listen_at(end, &handle);
  tell(end, handle.bytes, sizeof handle.bytes);
  memset(&handle, 0, sizeof handle);  // nobody needs the original
  void* comms[MANY];
  char seen[MANY] = {0};
  step("accept() of %d connections", count);
  for (int i = 0; i < count; i++) comms[i] = accept_one(end, listen_comm);
  succeed(end->net->close_listen(listen_comm));
  step("a message over each of %d connections", count);
  for (int i = 0; i < count; i++) {
    int number = -1;
    struct region region = region_of(end, comms[i], 4096);
    finish_with(end, receive_one(end, comms[i], region.bytes, 4096, 1, region.mr), 4096, "a received message");
    memcpy(&number, region.bytes, sizeof number);
    expect(number >= 0 && number < count && !seen[number], "expected each connection once, got number %d", number);
    seen[number] = 1;
    check_filled(region.bytes + 8, 4088, (uint64_t)number, "a message");
    region_release(end, comms[i], &region);
  }
  meet(end);
  for (int i = 0; i < count; i++) hang_up(end, comms[i]);
}

static void many_connector(struct end* end, int count) {
  struct handle handle;
  hear(end, handle.bytes, sizeof handle.bytes);
  void* comms[MANY] = {NULL};
  unsigned char copies[MANY][HANDLE_BYTES + 1];  // none aligned, each with a state of its own
  for (int i = 0; i < count; i++) memcpy(copies[i] + 1, handle.bytes, HANDLE_BYTES);
  struct waiting waiting = {0};
  step("connect() of %d connections at once", count);
  for (int ready = 0; ready < count;) {
    ready = 0;
    for (int i = 0; i < count; i++) {
      if (!comms[i]) succeed(end->net->connect(end->ctx, end->dev, copies[i] + 1, &comms[i]));
      ready += comms[i] != NULL;
    }
    wait_a_little(&waiting, "connect() to give a comm for each of many connections");
  }
  for (int i = 0; i < count; i++) {
    for (int other = 0; other < i; other++) expect(comms[i] != comms[other], "expected a comm per connection");
  }
  struct region regions[MANY];
  void* requests[MANY];
  step("a message over each of %d connections", count);
  for (int i = 0; i < count; i++) {
    regions[i] = region_of(end, comms[i], 4096);
    memset(regions[i].bytes, 0, 8);
    memcpy(regions[i].bytes, &i, sizeof i);
    fill(regions[i].bytes + 8, 4088, (uint64_t)i);
    requests[i] = NULL;
  }
  // The listener receives in an order of its own, so no send may hold up another.
  waiting = (struct waiting){0};
  for (int left = count; left > 0;) {
    left = 0;
    for (int i = 0; i < count; i++) {
      if (!requests[i]) requests[i] = try_send(end, comms[i], regions[i].bytes, 4096, 1, regions[i].mr);
      left += requests[i] == NULL;
    }
    wait_a_little(&waiting, "isend() to take a message on each of many connections");
  }
  for (int i = 0; i < count; i++) finish_with(end, requests[i], 4096, "a sent message");
  meet(end);
  for (int i = 0; i < count; i++) {
    region_release(end, comms[i], &regions[i]);
    hang_up(end, comms[i]);
  }
}

static void eight_listener(struct end* end) { many_listener(end, 8); }
static void eight_connector(struct end* end) { many_connector(end, 8); }
static void sixty_four_listener(struct end* end) { many_listener(end, MANY); }
static void sixty_four_connector(struct end* end) { many_connector(end, MANY); }

// NCCL closes the listen comm as soon as accept has given it a comm; the connector may not have its own yet.

static void early_close_listener(struct end* end) {
  void* comm = dial(end);  // closes the listen comm
  meet(end);
  exchange(end, comm, 1000, 5);
  hang_up(end, comm);
}

static void early_close_connector(struct end* end) {
  struct handle handle;
  hear(end, handle.bytes, sizeof handle.bytes);
  void* comm = NULL;
  succeed(end->net->connect(end->ctx, end->dev, handle.bytes, &comm));
  // No call while the listener accepts and closes: the rest is up to the plugin's own progress.
  meet(end);
  if (!comm) comm = connect_to(end, &handle);
  exchange(end, comm, 1000, 5);
  hang_up(end, comm);
}

// The listener accepts and closes again before the connector has asked: connect gives a comm all the same, or an error,
// and the comm is of no use.

static void gone_listener(struct end* end) {
  void* comm = dial(end);
  hang_up(end, comm);
  meet(end);
  meet(end);
}

static void gone_connector(struct end* end) {
  struct handle handle;
  hear(end, handle.bytes, sizeof handle.bytes);
  void* comm = NULL;
  succeed(end->net->connect(end->ctx, end->dev, handle.bytes, &comm));
  meet(end);
  struct waiting waiting = {0};
  bool failed = false;
  step("connect() to a peer that has accepted and closed since");
  while (!comm && !failed) {
    failed = end->net->connect(end->ctx, end->dev, handle.bytes, &comm) != ncclSuccess;
    if (!comm && !failed) wait_a_little(&waiting, "connect() to give a comm or an error");
  }
  if (comm) {
    expect_useless(end, comm);
    hang_up(end, comm);
  }
  meet(end);
}

// A connect either fails or is not ready yet; what must not be is success with a comm, a crash or a hang.
static bool is_refused(struct end* end, struct handle* handle, const char* what) {
  struct waiting waiting = {0};
  for (;;) {
    void* comm = NULL;
    if (end->net->connect(end->ctx, end->dev, handle->bytes, &comm) != ncclSuccess) return true;
    if (comm) {
      hang_up(end, comm);
      return false;
    }
    wait_a_little(&waiting, what);
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
  // The plugin is as good as before.
  struct pair pair = dial_self(end);
  exchange_self(end, &pair, 100, 6);
  hang_up_pair(end, &pair);
}

// The handle of a listen comm that is closed.

static void stale_listener(struct end* end) {
  struct handle handle;
  void* listen_comm = listen_at(end, &handle);
  succeed(end->net->close_listen(listen_comm));
  tell(end, handle.bytes, sizeof handle.bytes);
  meet(end);
}

static void stale_connector(struct end* end) {
  struct handle handle;
  hear(end, handle.bytes, sizeof handle.bytes);
  step("connect() to a listen comm that is closed");
  expect(is_refused(end, &handle, "an error from connect() to a closed listen comm"),
         "expected connect() to fail, its listen comm is closed");
  meet(end);
}

// A listen comm is closed while connects to it are under way. Each fails, or gives a comm whose sends fail.

static void pending_listener(struct end* end) {
  struct handle handle;
  void* listen_comm = listen_at(end, &handle);
  tell(end, handle.bytes, sizeof handle.bytes);
  meet(end);
  step("closeListen() with connects pending");
  succeed(end->net->close_listen(listen_comm));
  meet(end);
  meet(end);
  void* comm = dial(end);  // the device still serves others
  exchange(end, comm, 1000, 7);
  hang_up(end, comm);
}

static void pending_connector(struct end* end) {
  struct handle handle;
  hear(end, handle.bytes, sizeof handle.bytes);
  struct handle copies[8];
  void* comms[8] = {NULL};
  for (int i = 0; i < 8; i++) {
    copies[i] = handle;
    succeed(end->net->connect(end->ctx, end->dev, copies[i].bytes, &comms[i]));
  }
  meet(end);
  meet(end);
  step("connects whose listen comm was closed");
  for (int i = 0; i < 8; i++) {
    struct waiting waiting = {0};
    bool failed = false;
    while (!comms[i] && !failed) {
      failed = end->net->connect(end->ctx, end->dev, copies[i].bytes, &comms[i]) != ncclSuccess;
      if (!comms[i] && !failed) wait_a_little(&waiting, "connect() to fail, its listen comm is closed");
    }
    if (failed) continue;
    expect_useless(end, comms[i]);
    hang_up(end, comms[i]);
  }
  meet(end);
  void* comm = dial(end);
  exchange(end, comm, 1000, 7);
  hang_up(end, comm);
}

static void self(struct end* end) {
  struct pair pair = dial_self(end);
  exchange_self(end, &pair, 100000, 8);
  hang_up_pair(end, &pair);
}

const struct rule connecting_rules[] = {
    {.name = "connect-first",
     .sentence = "connect may come before accept",
     .listener = connect_first_listener,
     .connector = connect_first_connector},
    {.name = "accept-first",
     .sentence = "accept gives a NULL comm until someone connects, never blocks, and gives one comm per connection",
     .listener = accept_first_listener,
     .connector = accept_first_connector},
    {.name = "connect-in-turns",
     .sentence = "connect and accept in turns, one call each, come to an end",
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
     .sentence = "64 connections to one listen comm at once; handles are bytes that carry their own state",
     .listener = sixty_four_listener,
     .connector = sixty_four_connector},
    {.name = "close-listen-early",
     .sentence = "a connection lives on when its listen comm is closed right after accept",
     .listener = early_close_listener,
     .connector = early_close_connector},
    {.name = "closed-at-once",
     .sentence = "connect ends although the peer has accepted and closed since",
     .listener = gone_listener,
     .connector = gone_connector},
    {.name = "wrong-handle", .sentence = "a handle of random bytes is an error", .alone = wrong_handle},
    {.name = "stale-handle",
     .sentence = "connect to a closed listen comm is an error",
     .listener = stale_listener,
     .connector = stale_connector,
     .environment = {{"PARALET_RETRY_TIME", "1s"}}},
    {.name = "close-listen-pending",
     .sentence = "closing a listen comm with connects pending fails those and nothing else",
     .listener = pending_listener,
     .connector = pending_connector,
     .environment = {{"PARALET_RETRY_TIME", "1s"}}},
    {0}};
