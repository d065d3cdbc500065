// SPDX-License-Identifier: Apache-2.0
// finalize, dlclose, and what is left after many connections.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "log.h"
#include "rules.h"

/// What this process holds.
struct holdings {
  int files;
  int threads;
};

static struct holdings holdings(void) { return (struct holdings){open_files(), running_threads()}; }

/// Fails unless the process comes to hold no more than before. A thread that was joined may still be listed for a
/// moment.
static void expect_no_more(const struct holdings* before, const char* after_what) {
  const double until = now_s() + patience_s;
  for (;;) {
    const struct holdings now = holdings();
    if (now.files <= before->files && now.threads <= before->threads) return;
    if (now_s() > until) {
      expect(now.files <= before->files, "expected no file descriptor left after %s, there are %d more", after_what,
             now.files - before->files);
      fail("expected no thread left after %s, there are %d more", after_what, now.threads - before->threads);
    }
    sleep_s(1e-3);
  }
}

static void use(struct end* end) {
  struct pair pair = dial_self(end);
  exchange_self(end, &pair, 300000, 1);
  hang_up_pair(end, &pair);
}

static void finalize_leaves_nothing(struct end* end) {
  const struct holdings before = holdings();
  for (int round = 0; round < 5; round++) {
    step("load and unload %d", round);
    struct plugin plugin;
    load(&plugin, end->plugin, end->net->version);
    struct end inner = *end;
    inner.net = &plugin.net;
    succeed(plugin.net.init(&inner.ctx, 1));
    use(&inner);
    succeed(plugin.net.finalize(inner.ctx));
    expect_no_more(&before, "finalize");
    unload(&plugin);
    expect_no_more(&before, "dlclose");
  }
}

static void init_again(struct end* end) {
  struct plugin plugin;
  load(&plugin, end->plugin, end->net->version);
  const struct holdings before = holdings();
  for (int round = 0; round < 20; round++) {
    step("init and finalize %d", round);
    struct end inner = *end;
    inner.net = &plugin.net;
    succeed(plugin.net.init(&inner.ctx, (uint64_t)round));
    use(&inner);
    succeed(plugin.net.finalize(inner.ctx));
    expect_no_more(&before, "finalize");
  }
  unload(&plugin);
}

static void no_finalize(struct end* end) {
  for (int round = 0; round < 3; round++) {
    step("load and unload %d", round);
    struct plugin plugin;
    load(&plugin, end->plugin, end->net->version);
    struct end inner = *end;
    inner.net = &plugin.net;
    succeed(plugin.net.init(&inner.ctx, 1));
    use(&inner);
    unload(&plugin);
    sleep_s(0.05);  // threads of code that is gone would crash
  }
}

// finalize comes although comms are open, as when a job is torn down: it ends all threads. Closing afterwards is late,
// and gives the rest back.

static void finalize_open(struct end* end) {
  struct plugin plugin;
  load(&plugin, end->plugin, end->net->version);
  const struct holdings before = holdings();
  struct end inner = *end;
  inner.net = &plugin.net;
  succeed(plugin.net.init(&inner.ctx, 1));
  struct handle handle;
  void* listen_comm = listen_at(&inner, &handle);
  struct pair pair = dial_self(&inner);
  struct region region = region_of(&inner, pair.recv, 4096);
  void* request = receive_one(&inner, pair.recv, region.bytes, 4096, 1, region.mr);
  step("finalize() with comms open");
  succeed(plugin.net.finalize(inner.ctx));
  expect_no_more(&(struct holdings){open_files(), before.threads}, "finalize with comms open");
  step("calls after finalize()");
  int done = 0;
  expect(plugin.net.test(request, &done, NULL) != ncclSuccess || !done, "expected no message from nobody");
  region_release(&inner, pair.recv, &region);
  hang_up_pair(&inner, &pair);
  succeed(plugin.net.close_listen(listen_comm));
  expect_no_more(&before, "finalize and late closing");
  unload(&plugin);
}

// Connections come and go, a thousand times.

enum { CYCLES = 1000, WARM_UP = 100 };

static void cycles(struct end* end) {
  struct holdings before = {0, 0};
  long memory = 0;
  for (int i = 0; i < CYCLES; i++) {
    void* comm = dial(end);
    exchange(end, comm, 2000, (uint64_t)i);
    hang_up(end, comm);
    if (i == WARM_UP) {
      meet(end);
      before = holdings();
      memory = resident_bytes();
      meet(end);
    }
    if (i % 20 == 0) step("connection %d", i);
  }
  meet(end);
  const long grown = resident_bytes() - memory;
  expect_no_more(&before, "900 connections");
#ifndef PARALET_SANITIZED  // sanitizers hold freed memory back; LeakSanitizer looks for leaks there
  expect(grown < (CYCLES - WARM_UP) * 1024L, "expected less than a KiB kept per connection, %ld bytes were", grown);
#endif
  (void)grown;
  meet(end);
}

// Keeping connections open while someone outside looks, until a line comes on standard input.

enum { HELD = 64 };

static void wait_for_line(struct end* end) {
  meet(end);
  printf("holding %s %d\n", end->role, (int)getpid());
  fflush(stdout);
  char token = 0;
  if (strcmp(end->role, "connector") == 0) {
    while (read(STDIN_FILENO, &token, 1) == 1 && token != '\n') {
    }
    tell(end, &token, 1);
  } else {
    hear(end, &token, 1);
  }
}

static void hold(struct end* end) {
  void* comms[HELD];
  for (int i = 0; i < HELD; i++) {
    comms[i] = dial(end);
    exchange(end, comms[i], 200000, (uint64_t)i);
  }
  wait_for_line(end);
  for (int i = 0; i < HELD; i++) hang_up(end, comms[i]);
}

static void hold_after_cycles(struct end* end) {
  cycles(end);
  void* comm = dial(end);
  exchange(end, comm, 200000, 1);
  wait_for_line(end);
  hang_up(end, comm);
}

const struct rule lifetime_rules[] = {
    {.name = "finalize-leaves-nothing",
     .sentence = "finalize and dlclose leave no thread and no file descriptor, and the plugin can be loaded again",
     .alone = finalize_leaves_nothing,
     .since = 11,
     .bare = true},
    {.name = "init-again",
     .sentence = "init after finalize works as before",
     .alone = init_again,
     .since = 11,
     .bare = true},
    {.name = "finalize-open",
     .sentence = "finalize with comms open ends all threads; the comms can still be closed",
     .alone = finalize_open,
     .since = 11,
     .bare = true},
    {.name = "unload-without-finalize",
     .sentence = "dlclose of a version without finalize does not crash",
     .alone = no_finalize,
     .until = 10,
     .bare = true},
    {.name = "cycles",
     .sentence = "1,000 times connect, transfer, close: file descriptors, threads and memory do not grow",
     .listener = cycles,
     .connector = cycles},
    {.name = "hold-64",
     .sentence = "64 connections stay open until a line comes on standard input, for who counts QPs",
     .listener = hold,
     .connector = hold,
     .places = TWO_PROCESSES,
     .on_request = true},
    {.name = "hold-after-cycles",
     .sentence = "as cycles, and then one connection stays open until a line comes on standard input",
     .listener = hold_after_cycles,
     .connector = hold_after_cycles,
     .places = TWO_PROCESSES,
     .on_request = true},
    {0}};
