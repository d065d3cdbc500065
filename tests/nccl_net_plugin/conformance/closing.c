// SPDX-License-Identifier: Apache-2.0
// closeSend, closeRecv, and peers that go away.
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "rules.h"

enum { MIB = 1 << 20, MESSAGES = 8 };

/// Sends until the plugin refuses or has taken all, as a caller that does not know its peer is going. The requests.
static int send_while_it_lasts(struct end* end, void* comm, const struct region* region, void** requests) {
  int taken = 0;
  const double until = now_s() + 0.5;
  while (taken < MESSAGES && now_s() < until) {
    void* request = NULL;
    if (end->net->isend(comm, region->bytes + (size_t)taken * MIB, MIB, 1, region->mr, NULL, &request) != ncclSuccess) {
      break;
    }
    if (request) requests[taken++] = request;
    if (!request) sleep_s(1e-3);
  }
  return taken;
}

/// Gives back what was registered with a comm that is closed: by another comm, where registrations are global. Where
/// they are not they went with the comm.
static void region_forget(struct end* end, void* comm, struct region* region) {
  struct properties properties;
  succeed(end->net->get_properties(end->dev, &properties));
  region_unmap(region);  // first, so that whatever still reads or writes it crashes
  if (properties.reg_is_global) succeed(end->net->dereg_mr(comm, region->mr));
}

// The sender closes in the middle of messages, and its memory goes at once.

static void close_send_listener(struct end* end) {
  void* stays = dial(end);
  void* comm = dial(end);
  struct region region = region_of(end, comm, (size_t)MESSAGES * MIB);
  void* requests[MESSAGES];
  for (int i = 0; i < MESSAGES / 2; i++) {
    requests[i] = receive_one(end, comm, region.bytes + (size_t)i * MIB, MIB, 1, region.mr);
  }
  meet(end);
  meet(end);
  step("receives whose sender has closed");
  for (int i = 0; i < MESSAGES / 2; i++) {
    if (ends(end, requests[i])) check_filled(region.bytes + (size_t)i * MIB, MIB, (uint64_t)i, "a message said done");
  }
  region_release(end, comm, &region);
  hang_up(end, comm);
  exchange(end, stays, 1000, 1);
  hang_up(end, stays);
}

static void close_send_connector(struct end* end) {
  void* stays = dial(end);
  void* comm = dial(end);
  struct region region = region_of(end, comm, (size_t)MESSAGES * MIB);
  void* requests[MESSAGES];
  for (int i = 0; i < MESSAGES; i++) fill(region.bytes + (size_t)i * MIB, MIB, (uint64_t)i);
  meet(end);
  send_while_it_lasts(end, comm, &region, requests);
  step("closeSend() with sends in flight");
  hang_up(end, comm);
  region_forget(end, stays, &region);
  sleep_s(0.2);
  meet(end);
  exchange(end, stays, 1000, 1);
  hang_up(end, stays);
}

// The receiver closes in the middle of messages: from then on its memory is its own.

static void close_recv_listener(struct end* end) {
  void* stays = dial(end);
  void* comm = dial(end);
  struct region region = region_of(end, comm, (size_t)MESSAGES * MIB);
  for (int i = 0; i < MESSAGES / 2; i++) {
    receive_one(end, comm, region.bytes + (size_t)i * MIB, MIB, 1, region.mr);
  }
  meet(end);
  sleep_s(2e-3);
  step("closeRecv() with receives in flight");
  hang_up(end, comm);
  memset(region.bytes, UNTOUCHED, region.size);
  sleep_s(0.2);
  check_untouched(region.bytes, region.size, "memory of a comm that is closed");
  region_forget(end, stays, &region);
  meet(end);
  exchange(end, stays, 1000, 2);
  hang_up(end, stays);
}

static void close_recv_connector(struct end* end) {
  void* stays = dial(end);
  void* comm = dial(end);
  struct region region = region_of(end, comm, (size_t)MESSAGES * MIB);
  void* requests[MESSAGES];
  meet(end);
  const int taken = send_while_it_lasts(end, comm, &region, requests);
  step("sends whose receiver has closed");
  bool all_done = true;
  for (int i = 0; i < taken; i++) all_done = ends(end, requests[i]) && all_done;
  expect(taken <= MESSAGES / 2 || !all_done, "expected sends that nobody received to fail");
  region_release(end, comm, &region);
  hang_up(end, comm);
  meet(end);
  exchange(end, stays, 1000, 2);
  hang_up(end, stays);
}

// After a clean transfer either end may close first; the other may take its time.

static void order(struct end* end, bool first) {
  void* comm = dial(end);
  exchange(end, comm, 100000, 3);
  meet(end);
  if (first) hang_up(end, comm);
  meet(end);
  sleep_s(0.05);
  if (!first) hang_up(end, comm);
  meet(end);
}

static void order_listener(struct end* end) {
  order(end, true);
  order(end, false);
}

static void order_connector(struct end* end) {
  order(end, false);
  order(end, true);
}

// The sender closes as soon as its sends are done; the receiver looks later, and everything is there.

static void late_listener(struct end* end) {
  void* comm = dial(end);
  struct region region = region_of(end, comm, (size_t)MESSAGES * MIB);
  void* requests[MESSAGES];
  for (int i = 0; i < MESSAGES; i++) {
    requests[i] = receive_one(end, comm, region.bytes + (size_t)i * MIB, MIB, 1, region.mr);
  }
  meet(end);  // the connector has closed
  for (int i = 0; i < MESSAGES; i++) {
    finish_with(end, requests[i], MIB, "a message whose sender has closed since");
    check_filled(region.bytes + (size_t)i * MIB, MIB, (uint64_t)i, "a message");
  }
  region_release(end, comm, &region);
  hang_up(end, comm);
}

static void late_connector(struct end* end) {
  void* comm = dial(end);
  struct region region = region_of(end, comm, (size_t)MESSAGES * MIB);
  void* requests[MESSAGES];
  for (int i = 0; i < MESSAGES; i++) {
    fill(region.bytes + (size_t)i * MIB, MIB, (uint64_t)i);
    requests[i] = send_one(end, comm, region.bytes + (size_t)i * MIB, MIB, 1, region.mr);
  }
  for (int i = 0; i < MESSAGES; i++) finish_with(end, requests[i], MIB, "a sent message");
  region_release(end, comm, &region);
  hang_up(end, comm);
  meet(end);
}

// Closing one connection does not touch another between the same devices.

static void neighbour(struct end* end, bool sends) {
  void* stays = dial(end);
  void* goes = dial(end);
  struct region region = region_of(end, stays, (size_t)MESSAGES * MIB);
  struct region other = region_of(end, goes, MIB);
  void* requests[MESSAGES];
  for (int i = 0; i < MESSAGES; i++) {
    unsigned char* at = region.bytes + (size_t)i * MIB;
    if (sends) fill(at, MIB, (uint64_t)i);
    requests[i] = sends ? send_one(end, stays, at, MIB, 1, region.mr) : receive_one(end, stays, at, MIB, 1, region.mr);
    if (i == MESSAGES / 2) {
      if (!sends) receive_one(end, goes, other.bytes, MIB, 1, other.mr);  // never tested
      hang_up(end, goes);
      region_forget(end, stays, &other);
    }
  }
  for (int i = 0; i < MESSAGES; i++) {
    finish_with(end, requests[i], MIB, "a message beside a connection that closes");
    if (!sends) check_filled(region.bytes + (size_t)i * MIB, MIB, (uint64_t)i, "a message");
  }
  region_release(end, stays, &region);
  meet(end);
  hang_up(end, stays);
}

static void neighbour_listener(struct end* end) { neighbour(end, false); }
static void neighbour_connector(struct end* end) { neighbour(end, true); }

// A peer that is killed, or that falls silent: test() fails, after PARALET_RETRY_TIME at the latest, give or take the
// machine. Bounds are multiples of it.

enum { RETRY_TIME_S = 1, BOUND = 10 };

/// Tests until an error comes, which has to be before the bound.
static void fails_in_time(struct end* end, void* request, const char* what) {
  const double start = now_s();
  for (;;) {
    int done = 0;
    int size = 0;
    if (end->net->test(request, &done, &size) != ncclSuccess) return;
    expect(!done, "expected %s to fail, it is done", what);
    expect(now_s() - start < BOUND * RETRY_TIME_S, "expected %s to fail within %d times PARALET_RETRY_TIME", what,
           BOUND);
    sleep_s(1e-3);
  }
}

static void mourning_listener(struct end* end) {
  void* comm = dial(end);
  struct region region = region_of(end, comm, 4096);
  exchange(end, comm, 1000, 4);
  void* request = receive_one(end, comm, region.bytes, 4096, 1, region.mr);
  meet(end);
  step("test() of a receive whose peer is gone");
  fails_in_time(end, request, "a receive from a peer that is gone");
  region_release(end, comm, &region);
  hang_up(end, comm);
}

static void killed_connector(struct end* end) {
  void* comm = dial(end);
  exchange(end, comm, 1000, 4);
  meet(end);
  raise(SIGKILL);
}

static void killed_listener(struct end* end) {
  void* comm = dial(end);
  struct region region = region_of(end, comm, 4096);
  exchange(end, comm, 1000, 4);
  receive_one(end, comm, region.bytes, 4096, 1, region.mr);
  meet(end);
  raise(SIGKILL);
}

/// Sends, of which one at most can be received, until an error comes.
static void mourning_connector(struct end* end) {
  void* comm = dial(end);
  exchange(end, comm, 1000, 4);
  struct region region = region_of(end, comm, (size_t)4 * MIB);
  meet(end);
  step("sends to a peer that is gone");
  const double start = now_s();
  void* request = NULL;
  for (;;) {
    int done = 0;
    const ncclResult_t result = request ? end->net->test(request, &done, NULL)
                                        : end->net->isend(comm, region.bytes, 4096, 1, region.mr, NULL, &request);
    if (result != ncclSuccess) break;
    if (done) request = NULL;
    expect(now_s() - start < BOUND * RETRY_TIME_S, "expected sends to fail within %d times PARALET_RETRY_TIME", BOUND);
    sleep_s(1e-3);
  }
  region_release(end, comm, &region);
  hang_up(end, comm);
}

static void silent_listener(struct end* end) {
  void* comm = dial(end);
  struct region region = region_of(end, comm, 4096);
  exchange(end, comm, 1000, 5);
  receive_one(end, comm, region.bytes, 4096, 1, region.mr);
  sleep_s(0.2);  // the sender shall hear of the receive: it has patience without end with a peer that posts none
  const pid_t pid = getpid();
  tell(end, &pid, sizeof pid);
  sleep_s(3600);  // stopped, and killed at the end
}

static void deserted_connector(struct end* end) {
  void* comm = dial(end);
  exchange(end, comm, 1000, 5);
  struct region region = region_of(end, comm, 4096);
  pid_t peer = 0;
  hear(end, &peer, sizeof peer);
  stop_process(peer);
  step("a send to a peer that answers nothing");
  const double start = now_s();
  fails_in_time(end, send_one(end, comm, region.bytes, 4096, 1, region.mr), "a send to a peer that answers nothing");
  const double took = now_s() - start;
  expect(took > 0.5 * RETRY_TIME_S, "expected PARALET_RETRY_TIME's patience with a silent peer, got %g s", took);
  region_release(end, comm, &region);
  hang_up(end, comm);
  kill(peer, SIGKILL);
}

const struct rule closing_rules[] = {
    {.name = "close-send-in-flight",
     .sentence = "closeSend with sends in flight: its memory may go at once, and the peer's receives end",
     .listener = close_send_listener,
     .connector = close_send_connector},
    {.name = "close-recv-in-flight",
     .sentence = "closeRecv with receives in flight: its memory is not written any more, and the peer's sends end",
     .listener = close_recv_listener,
     .connector = close_recv_connector},
    {.name = "close-order",
     .sentence = "either end may close first",
     .listener = order_listener,
     .connector = order_connector},
    {.name = "close-after-send",
     .sentence = "what was sent before closeSend is received after it",
     .listener = late_listener,
     .connector = late_connector},
    {.name = "close-neighbour",
     .sentence = "closing one connection does not touch another to the same peer",
     .listener = neighbour_listener,
     .connector = neighbour_connector},
    {.name = "sender-killed",
     .sentence = "when the sending process is killed, receives fail in time",
     .listener = mourning_listener,
     .connector = killed_connector,
     .places = TWO_PROCESSES_OR_HOSTS,
     .killed = "connector",
     .environment = {{"PARALET_RETRY_TIME", "1s"}}},
    {.name = "receiver-killed",
     .sentence = "when the receiving process is killed, sends fail in time",
     .listener = killed_listener,
     .connector = mourning_connector,
     .places = TWO_PROCESSES_OR_HOSTS,
     .killed = "listener",
     .environment = {{"PARALET_RETRY_TIME", "1s"}}},
    {.name = "receiver-silent",
     .sentence = "a peer that answers nothing is given up after PARALET_RETRY_TIME, not before",
     .listener = silent_listener,
     .connector = deserted_connector,
     .places = TWO_PROCESSES,
     .killed = "listener",
     .environment = {{"PARALET_RETRY_TIME", "1s"}}},
    {0}};
