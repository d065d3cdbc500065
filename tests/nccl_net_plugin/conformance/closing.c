// SPDX-License-Identifier: Apache-2.0
// closeSend, closeRecv, and peers that disappear.
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "log.h"
#include "rules.h"

enum { MIB = 1 << 20, MESSAGES = 8 };

/// Sends until the plugin refuses or has accepted all, like a caller that does not know its peer is closing. Returns
/// the number of requests.
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

/// Releases a region that was registered with a closed comm. Global registrations are deregistered with another comm;
/// others ended with the comm.
static void region_forget(struct end* end, void* comm, struct region* region) {
  struct properties properties;
  expect_success(end->net->get_properties(end->dev, &properties));
  region_unmap(region);  // first, so that any later access crashes
  if (properties.reg_is_global) expect_success(end->net->dereg_mr(comm, region->mr));
}

// The sender closes with messages in flight, and unmaps their memory at once.

static void close_send_listener(struct end* end) {
  void* stays = open_connection(end);
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)MESSAGES * MIB);
  void* requests[MESSAGES];
  for (int i = 0; i < MESSAGES / 2; i++) {
    requests[i] = receive_one(end, comm, region.bytes + (size_t)i * MIB, MIB, 1, region.mr);
  }
  synchronize(end);
  synchronize(end);
  step("receives after the sender has closed");
  for (int i = 0; i < MESSAGES / 2; i++) {
    if (wait_done_or_failed(end, requests[i]))
      check_filled(region.bytes + (size_t)i * MIB, MIB, (uint64_t)i, "a message reported as done");
  }
  region_release(end, comm, &region);
  close_connection(end, comm);
  exchange(end, stays, 1000, 1);
  close_connection(end, stays);
}

static void close_send_connector(struct end* end) {
  void* stays = open_connection(end);
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)MESSAGES * MIB);
  void* requests[MESSAGES];
  for (int i = 0; i < MESSAGES; i++) fill(region.bytes + (size_t)i * MIB, MIB, (uint64_t)i);
  synchronize(end);
  send_while_it_lasts(end, comm, &region, requests);
  step("closeSend() with sends in flight");
  close_connection(end, comm);
  region_forget(end, stays, &region);
  sleep_s(0.2);
  synchronize(end);
  exchange(end, stays, 1000, 1);
  close_connection(end, stays);
}

// The receiver closes with messages in flight. After that the plugin must not write to its memory.

static void close_recv_listener(struct end* end) {
  void* stays = open_connection(end);
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)MESSAGES * MIB);
  for (int i = 0; i < MESSAGES / 2; i++) {
    receive_one(end, comm, region.bytes + (size_t)i * MIB, MIB, 1, region.mr);
  }
  synchronize(end);
  sleep_s(2e-3);
  step("closeRecv() with receives in flight");
  close_connection(end, comm);
  memset(region.bytes, UNTOUCHED, region.size);
  sleep_s(0.2);
  check_untouched(region.bytes, region.size, "memory of a comm that is closed");
  region_forget(end, stays, &region);
  synchronize(end);
  exchange(end, stays, 1000, 2);
  close_connection(end, stays);
}

static void close_recv_connector(struct end* end) {
  void* stays = open_connection(end);
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)MESSAGES * MIB);
  void* requests[MESSAGES];
  synchronize(end);
  const int taken = send_while_it_lasts(end, comm, &region, requests);
  step("sends after the receiver has closed");
  bool all_done = true;
  for (int i = 0; i < taken; i++) all_done = wait_done_or_failed(end, requests[i]) && all_done;
  expect(taken <= MESSAGES / 2 || !all_done, "expected sends without a receive to fail");
  region_release(end, comm, &region);
  close_connection(end, comm);
  synchronize(end);
  exchange(end, stays, 1000, 2);
  close_connection(end, stays);
}

// After a complete transfer either end may close first, and the other one much later.

static void order(struct end* end, bool first) {
  void* comm = open_connection(end);
  exchange(end, comm, 100000, 3);
  synchronize(end);
  if (first) close_connection(end, comm);
  synchronize(end);
  sleep_s(0.05);
  if (!first) close_connection(end, comm);
  synchronize(end);
}

static void order_listener(struct end* end) {
  order(end, true);
  order(end, false);
}

static void order_connector(struct end* end) {
  order(end, false);
  order(end, true);
}

// The sender closes as soon as its sends are done. The receiver tests later and gets all messages.

static void late_listener(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)MESSAGES * MIB);
  void* requests[MESSAGES];
  for (int i = 0; i < MESSAGES; i++) {
    requests[i] = receive_one(end, comm, region.bytes + (size_t)i * MIB, MIB, 1, region.mr);
  }
  synchronize(end);  // the connector has closed
  for (int i = 0; i < MESSAGES; i++) {
    finish_with(end, requests[i], MIB, "a message whose sender has closed since");
    check_filled(region.bytes + (size_t)i * MIB, MIB, (uint64_t)i, "a message");
  }
  region_release(end, comm, &region);
  close_connection(end, comm);
}

static void late_connector(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)MESSAGES * MIB);
  void* requests[MESSAGES];
  for (int i = 0; i < MESSAGES; i++) {
    fill(region.bytes + (size_t)i * MIB, MIB, (uint64_t)i);
    requests[i] = send_one(end, comm, region.bytes + (size_t)i * MIB, MIB, 1, region.mr);
  }
  for (int i = 0; i < MESSAGES; i++) finish_with(end, requests[i], MIB, "a sent message");
  region_release(end, comm, &region);
  close_connection(end, comm);
  synchronize(end);
}

// Closing one connection does not affect another one between the same devices.

static void neighbour(struct end* end, bool sends) {
  void* stays = open_connection(end);
  void* goes = open_connection(end);
  struct region region = region_register(end, stays, (size_t)MESSAGES * MIB);
  struct region other = region_register(end, goes, MIB);
  void* requests[MESSAGES];
  for (int i = 0; i < MESSAGES; i++) {
    unsigned char* at = region.bytes + (size_t)i * MIB;
    if (sends) fill(at, MIB, (uint64_t)i);
    requests[i] = sends ? send_one(end, stays, at, MIB, 1, region.mr) : receive_one(end, stays, at, MIB, 1, region.mr);
    if (i == MESSAGES / 2) {
      if (!sends) receive_one(end, goes, other.bytes, MIB, 1, other.mr);  // never tested
      close_connection(end, goes);
      region_forget(end, stays, &other);
    }
  }
  for (int i = 0; i < MESSAGES; i++) {
    finish_with(end, requests[i], MIB, "a message beside a connection that closes");
    if (!sends) check_filled(region.bytes + (size_t)i * MIB, MIB, (uint64_t)i, "a message");
  }
  region_release(end, stays, &region);
  synchronize(end);
  close_connection(end, stays);
}

static void neighbour_listener(struct end* end) { neighbour(end, false); }
static void neighbour_connector(struct end* end) { neighbour(end, true); }

// A peer is killed or does not answer: test() fails after at most PARALET_RETRY_TIME. The bounds are multiples of it,
// because the machine may be slow.

enum { RETRY_TIME_S = 1, BOUND = 10 };

/// Tests until an error is returned, which must be within the bound.
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
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, 4096);
  exchange(end, comm, 1000, 4);
  void* request = receive_one(end, comm, region.bytes, 4096, 1, region.mr);
  synchronize(end);
  step("test() of a receive after the peer has ended");
  fails_in_time(end, request, "a receive from a peer that is gone");
  region_release(end, comm, &region);
  close_connection(end, comm);
}

static void killed_connector(struct end* end) {
  void* comm = open_connection(end);
  exchange(end, comm, 1000, 4);
  synchronize(end);
  raise(SIGKILL);
}

static void killed_listener(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, 4096);
  exchange(end, comm, 1000, 4);
  receive_one(end, comm, region.bytes, 4096, 1, region.mr);
  synchronize(end);
  raise(SIGKILL);
}

/// Sends until an error is returned. At most one of the messages can be received.
static void mourning_connector(struct end* end) {
  void* comm = open_connection(end);
  exchange(end, comm, 1000, 4);
  struct region region = region_register(end, comm, (size_t)4 * MIB);
  synchronize(end);
  step("sends to a peer that has ended");
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
  close_connection(end, comm);
}

/// The messages are long: a short one may be done as soon as the transport has a copy of it.
static void silent_listener(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, MIB);
  exchange(end, comm, 1000, 5);
  receive_one(end, comm, region.bytes, MIB, 1, region.mr);
  sleep_s(0.2);  // the sender must learn of the receive: it waits forever for a live peer that posts none
  const pid_t pid = getpid();
  send_to_other_end(end, &pid, sizeof pid);
  sleep_s(3600);  // is stopped, and killed at the end
}

static void deserted_connector(struct end* end) {
  void* comm = open_connection(end);
  exchange(end, comm, 1000, 5);
  struct region region = region_register(end, comm, MIB);
  pid_t peer = 0;
  receive_from_other_end(end, &peer, sizeof peer);
  stop_process(peer);
  step("a send to a peer that does not answer");
  const double start = now_s();
  fails_in_time(end, send_one(end, comm, region.bytes, MIB, 1, region.mr), "a send to a peer that answers nothing");
  const double took = now_s() - start;
  expect(took > 0.5 * (int)RETRY_TIME_S,
         "expected sends to a silent peer to fail only after PARALET_RETRY_TIME, they failed after %g s", took);
  region_release(end, comm, &region);
  close_connection(end, comm);
  kill(peer, SIGKILL);
}

// A peer that is stopped holds a close for a bounded time. Bounds are multiples of PARALET_RETRY_TIME.

enum { STOPPED_RETRY_S = 4 };

static void stopped_listener(struct end* end) {
  void* receives = open_connection(end);
  void* waits = open_connection(end);
  void* sends = open_connection(end);
  struct region region = region_register(end, sends, 4096);
  receive_one(end, sends, region.bytes, 4096, 1, region.mr);
  sleep_s(0.2);  // the sender must learn of the receive
  const pid_t pid = getpid();
  send_to_other_end(end, &pid, sizeof pid);
  (void)receives, (void)waits;
  sleep_s(3600);  // is stopped, and killed at the end
}

static double close_took(struct end* end, void* comm) {
  const double start = now_s();
  close_connection(end, comm);
  return now_s() - start;
}

static void stopped_connector(struct end* end) {
  void* idle = open_connection(end);
  void* waits = open_connection(end);
  void* sends = open_connection(end);
  struct region region = region_register(end, sends, 8192);
  pid_t peer = 0;
  receive_from_other_end(end, &peer, sizeof peer);
  stop_process(peer);
  step("closeSend() towards a stopped peer");
  double took = close_took(end, idle);
  expect(took < 0.5 * (int)STOPPED_RETRY_S, "expected to close an idle comm before PARALET_RETRY_TIME, it took %g s",
         took);
  send_one(end, waits, region.bytes, 4096, 1, region.mr);  // no receive
  took = close_took(end, waits);
  expect(took < 0.5 * (int)STOPPED_RETRY_S,
         "expected to close a comm that has sent nothing before PARALET_RETRY_TIME, "
         "it took %g s",
         took);
  send_one(end, sends, region.bytes + 4096, 4096, 1, region.mr);  // its packets are not acknowledged
  took = close_took(end, sends);
  expect(took < 3 * (STOPPED_RETRY_S + 1), "expected to close soon after PARALET_RETRY_TIME, it took %g s", took);
  region_forget(end, NULL, &region);
  kill(peer, SIGKILL);
}

// A peer that is alive and still acknowledges a long message is waited for, on however slow a link.

static void slow_listener(struct end* end) {
  void* stays = open_connection(end);
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)8 * MIB);
  void* request = receive_one(end, comm, region.bytes, region.size, 1, region.mr);
  synchronize(end);
  wait_done_or_failed(end, request);
  region_release(end, stays, &region);
  close_connection(end, comm);
  exchange(end, stays, 1000, 1);
  close_connection(end, stays);
}

static void slow_connector(struct end* end) {
  void* stays = open_connection(end);
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)8 * MIB);
  synchronize(end);
  sleep_s(0.05);  // the receive is known: the message leaves at once
  send_one(end, comm, region.bytes, region.size, 1, region.mr);
  step("closeSend() while a slow link carries a long message");
  close_connection(end, comm);
  region_forget(end, stays, &region);
  expect(log_count(NCCL_LOG_WARN, "does not answer") == 0, "expected no warning about a peer that answers");
  exchange(end, stays, 1000, 1);
  close_connection(end, stays);
}

const struct rule closing_rules[] = {
    {.name = "close-send-in-flight",
     .sentence = "after closeSend with sends in flight their memory may be freed at once, and the peer's receives "
                 "finish or fail",
     .listener = close_send_listener,
     .connector = close_send_connector},
    {.name = "close-recv-in-flight",
     .sentence =
         "after closeRecv with receives in flight their memory is not written, and the peer's sends finish or fail",
     .listener = close_recv_listener,
     .connector = close_recv_connector},
    {.name = "close-order",
     .sentence = "either end may close first",
     .listener = order_listener,
     .connector = order_connector},
    {.name = "close-after-send",
     .sentence = "messages sent before closeSend can be received after it",
     .listener = late_listener,
     .connector = late_connector},
    {.name = "close-neighbour",
     .sentence = "closing one connection does not affect another one to the same peer",
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
     .sentence = "a peer that does not answer is given up after PARALET_RETRY_TIME, not before",
     .listener = silent_listener,
     .connector = deserted_connector,
     .places = TWO_PROCESSES,
     .killed = "listener",
     .environment = {{"PARALET_RETRY_TIME", "1s"}}},
    {.name = "close-stopped",
     .sentence =
         "a stopped peer holds closeSend only while packets are not acknowledged, and then not much longer than "
         "PARALET_RETRY_TIME",
     .listener = stopped_listener,
     .connector = stopped_connector,
     .places = TWO_PROCESSES,
     .since = 12,
     .killed = "listener",
     .environment = {{"PARALET_RETRY_TIME", "4s"}}},
    {.name = "close-slow",
     .sentence = "closeSend waits for a live peer longer than PARALET_RETRY_TIME, and harms no other connection",
     .listener = slow_listener,
     .connector = slow_connector,
     .places = TWO_PROCESSES,
     .since = 12,
     // Long beside the time for which a busy machine keeps a process waiting, short beside the message's 5.6 s.
     .environment = {{"PARALET_RETRY_TIME", "1500ms"},
                     {"PARALET_LINE_RATE", "12Mbit/s"},
                     {"PARALET_FLOWLET_BYTES", "2MiB"}}},
    {0}};
