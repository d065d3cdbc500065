// SPDX-License-Identifier: Apache-2.0
// finalize, dlclose, and what is left after many connections.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "log.h"
#include "rules.h"

/// Resources of this process.
struct holdings {
  int files;
  int threads;
};

static struct holdings holdings(void) { return (struct holdings){open_files(), running_threads()}; }

/// Waits until the process has no more resources than before, else fails. A joined thread may still be listed for a
/// moment.
static void expect_no_more(const struct holdings* before, const char* after_what) {
  const double until = now_s() + timeout_s;
  for (;;) {
    const struct holdings now = holdings();
    if (now.files <= before->files && now.threads <= before->threads) return;
    if (now_s() > until) {
      expect(now.files <= before->files, "expected no additional file descriptors after %s, got %d", after_what,
             now.files - before->files);
      fail("expected no additional threads after %s, got %d", after_what, now.threads - before->threads);
    }
    sleep_s(1e-3);
  }
}

static void use(struct end* end) {
  struct pair pair = open_pair(end);
  exchange_self(end, &pair, 300000, 1);
  close_pair(end, &pair);
}

static void finalize_leaves_nothing(struct end* end) {
  const struct holdings before = holdings();
  for (int round = 0; round < 5; round++) {
    step("load and unload %d", round);
    struct plugin plugin;
    load(&plugin, end->plugin, end->net->version);
    struct end inner = *end;
    inner.net = &plugin.net;
    expect_success(plugin.net.init(&inner.ctx, 1));
    use(&inner);
    expect_success(plugin.net.finalize(inner.ctx));
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
    expect_success(plugin.net.init(&inner.ctx, (uint64_t)round));
    use(&inner);
    expect_success(plugin.net.finalize(inner.ctx));
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
    expect_success(plugin.net.init(&inner.ctx, 1));
    use(&inner);
    unload(&plugin);
    sleep_s(0.05);  // threads of unmapped code would crash
  }
}

// finalize with open comms, as when a job is aborted, ends all threads. Closing the comms afterwards frees the rest.

static void finalize_open(struct end* end) {
  struct plugin plugin;
  load(&plugin, end->plugin, end->net->version);
  const struct holdings before = holdings();
  struct end inner = *end;
  inner.net = &plugin.net;
  expect_success(plugin.net.init(&inner.ctx, 1));
  struct handle handle;
  void* listen_comm = listen_at(&inner, &handle);
  struct pair pair = open_pair(&inner);
  struct region region = region_register(&inner, pair.recv, 4096);
  void* request = receive_one(&inner, pair.recv, region.bytes, 4096, 1, region.mr);
  step("finalize() with comms open");
  expect_success(plugin.net.finalize(inner.ctx));
  expect_no_more(&(struct holdings){open_files(), before.threads}, "finalize with comms open");
  step("calls after finalize()");
  int done = 0;
  expect(plugin.net.test(request, &done, NULL) != ncclSuccess || !done,
         "expected a receive without a sender not to be done");
  region_release(&inner, pair.recv, &region);
  close_pair(&inner, &pair);
  expect_success(plugin.net.close_listen(listen_comm));
  expect_no_more(&before, "finalize and late closing");
  unload(&plugin);
}

// A thousand connections, one after the other.

enum { CYCLES = 1000, WARM_UP = 100 };

static void cycles(struct end* end) {
  struct holdings before = {0, 0};
  long memory = 0;
  for (int i = 0; i < CYCLES; i++) {
    void* comm = open_connection(end);
    exchange(end, comm, 2000, (uint64_t)i);
    close_connection(end, comm);
    if (i == WARM_UP) {
      synchronize(end);
      before = holdings();
      memory = resident_bytes();
      synchronize(end);
    }
    if (i % 20 == 0) step("connection %d", i);
  }
  synchronize(end);
  const long grown = resident_bytes() - memory;
  expect_no_more(&before, "900 connections");
#ifndef PARALET_SANITIZED  // sanitizers keep freed memory; LeakSanitizer finds leaks there
  expect(grown < (CYCLES - WARM_UP) * 1024L, "expected less than 1 KiB of growth per connection, got %ld bytes in all",
         grown);
#endif
  (void)grown;
  synchronize(end);
}

// Keeps connections open for an observer until a line arrives on standard input.

enum { HELD = 64 };

static void wait_for_line(struct end* end) {
  synchronize(end);
  printf("holding %s %d\n", end->role, (int)getpid());
  fflush(stdout);
  char token = 0;
  if (strcmp(end->role, "connector") == 0) {
    while (read(STDIN_FILENO, &token, 1) == 1 && token != '\n') {
    }
    send_to_other_end(end, &token, 1);
  } else {
    receive_from_other_end(end, &token, 1);
  }
}

static void hold(struct end* end) {
  void* comms[HELD];
  for (int i = 0; i < HELD; i++) {
    comms[i] = open_connection(end);
    exchange(end, comms[i], 200000, (uint64_t)i);
  }
  wait_for_line(end);
  for (int i = 0; i < HELD; i++) close_connection(end, comms[i]);
}

static void hold_after_cycles(struct end* end) {
  cycles(end);
  void* comm = open_connection(end);
  exchange(end, comm, 200000, 1);
  wait_for_line(end);
  close_connection(end, comm);
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
     .sentence = "64 connections stay open until a line arrives on standard input, so that a test can count QPs",
     .listener = hold,
     .connector = hold,
     .places = TWO_PROCESSES,
     .on_request = true},
    {.name = "hold-after-cycles",
     .sentence = "as cycles; then one connection stays open until a line arrives on standard input",
     .listener = hold_after_cycles,
     .connector = hold_after_cycles,
     .places = TWO_PROCESSES,
     .on_request = true},
    {0}};
