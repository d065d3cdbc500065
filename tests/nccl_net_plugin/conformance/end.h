// SPDX-License-Identifier: Apache-2.0
// One end of a rule: the plugin in use, and a stream to the other end, in another process, thread or host.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "net.h"

/// What an end tells the program that watches it; lives in memory shared with it.
struct report {
  unsigned long steps;  ///< grows while the end gets on
  char step[160];       ///< what it does now
  int failures;
  char failure[1400];  ///< the first thing that was not as it had to be
};

struct end {
  const char* role;  ///< "listener", "connector" or "alone"
  const char* plugin;
  const struct net* net;
  void* ctx;
  int dev;
  int channel;  ///< stream to the other end, or -1
  struct report* report;
};

/// The plugin's library and the vtable in use.
struct plugin {
  void* library;
  struct net net;
};

extern double patience_s;  ///< what is not done by then never will be

// Failing. The end whose thread this is says what was expected and what happened, and the process ends.
void speak_for(struct end* end);
_Noreturn void fail_at(const char* file, int line, const char* format, ...) __attribute__((format(printf, 3, 4)));
#define fail(...) fail_at(__FILE__, __LINE__, __VA_ARGS__)
#define expect(CONDITION, ...) ((CONDITION) ? (void)0 : fail(__VA_ARGS__))
/// A call that has to succeed.
#define succeed(CALL)                                                                                  \
  do {                                                                                                 \
    const ncclResult_t result_ = (CALL);                                                               \
    if (result_ != ncclSuccess) fail("expected success, got %s from %s", result_name(result_), #CALL); \
  } while (0)
const char* result_name(ncclResult_t result);
/// Says what comes next; a hang is reported with it.
void step(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Time.
double now_s(void);
void sleep_s(double seconds);
/// Waiting busily but politely: `while (!ready) wait_a_little(&waiting, "what for")`. Fails when patience ends.
struct waiting {
  double until;
  unsigned rounds;
};
void wait_a_little(struct waiting* waiting, const char* for_what);

// The other end.
void tell(struct end* end, const void* data, size_t size);
void hear(struct end* end, void* data, size_t size);
/// Returns when the other end has called it too.
void meet(struct end* end);

// The plugin.
void load(struct plugin* plugin, const char* path, int version);
void unload(struct plugin* plugin);

// Connections.
struct handle {
  unsigned char bytes[HANDLE_BYTES];
};
/// Listens, with everything around the handle checked.
void* listen_at(struct end* end, struct handle* handle);
void* accept_one(struct end* end, void* listen_comm);
/// `handle` keeps the state between calls.
void* connect_to(struct end* end, struct handle* handle);
/// A connection between the ends: the listener's comm receives what the connector's sends.
void* dial(struct end* end);
void hang_up(struct end* end, void* comm);

// Memory, between guard pages.
struct region {
  unsigned char* bytes;
  size_t size;  ///< whole pages
  void* mr;     ///< registered with the comm it was made for
};
enum { UNTOUCHED = 0xEE };
struct region region_of(struct end* end, void* comm, size_t size);
void region_release(struct end* end, void* comm, struct region* region);
/// Without registering; region_of is this and regMr.
struct region region_map(size_t size);
void region_unmap(struct region* region);

// What messages look like: each its own content, by a seed.
uint64_t content_of(int series, int number);
void fill(unsigned char* bytes, size_t size, uint64_t seed);
void check_filled(const unsigned char* bytes, size_t size, uint64_t seed, const char* what);
/// Whether all bytes are UNTOUCHED.
void check_untouched(const unsigned char* bytes, size_t size, const char* what);
bool is_filled(const unsigned char* bytes, size_t size, uint64_t seed);

// Requests. These retry while the plugin answers with a NULL request.
void* send_one(struct end* end, void* comm, void* data, size_t size, int tag, void* mr);
void* receive_one(struct end* end, void* comm, void* data, size_t size, int tag, void* mr);
/// Once: NULL when the plugin says to come again.
void* try_send(struct end* end, void* comm, void* data, size_t size, int tag, void* mr);
void* try_receive(struct end* end, void* comm, void* data, size_t size, int tag, void* mr);
/// Tests until done; the size of the first message.
int finish(struct end* end, void* request);
/// As finish, for a request that has to carry `size` bytes.
void finish_with(struct end* end, void* request, size_t size, const char* what);
/// Tests until done or refused. True when done.
bool ends(struct end* end, void* request);

/// A whole message from connector to listener, checked: what a connection is good for.
void exchange(struct end* end, void* comm, size_t size, uint64_t seed);

/// Stops a process; returns when all of its threads stand still.
void stop_process(pid_t pid);

// What this process holds.
int open_files(void);
int running_threads(void);
long resident_bytes(void);

/// A connection from this end to itself, made by one thread.
struct pair {
  void* send;
  void* recv;
};
struct pair dial_self(struct end* end);
void hang_up_pair(struct end* end, struct pair* pair);
/// A message over it, checked.
void exchange_self(struct end* end, const struct pair* pair, size_t size, uint64_t seed);
