// SPDX-License-Identifier: Apache-2.0
// One end of a rule: the plugin in use, and a stream to the other end, in another process, thread or host.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "net.h"

/// The report of an end, in memory that it shares with the supervising program.
struct report {
  unsigned long steps;  ///< grows while the end makes progress
  char step[160];       ///< what the end does now
  int failures;
  char failure[1400];  ///< the first failed expectation
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

extern double timeout_s;  ///< time limit of every wait

// Failures. The end of the calling thread reports what was expected and what happened, and the process ends.
void set_current_end(struct end* end);
_Noreturn void fail_at(const char* file, int line, const char* format, ...) __attribute__((format(printf, 3, 4)));
#define fail(...) fail_at(__FILE__, __LINE__, __VA_ARGS__)
#define expect(CONDITION, ...) ((CONDITION) ? (void)0 : fail(__VA_ARGS__))
/// Fails unless the call returns ncclSuccess.
#define expect_success(CALL)                                                                           \
  do {                                                                                                 \
    const ncclResult_t result_ = (CALL);                                                               \
    if (result_ != ncclSuccess) fail("expected success, got %s from %s", result_name(result_), #CALL); \
  } while (0)
const char* result_name(ncclResult_t result);
/// Names the current step, which the report of a failure or a hang includes.
void step(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Time.
double now_s(void);
void sleep_s(double seconds);
/// For polling loops: `while (!ready) poll_again(&waiting, "what is awaited")`. Yields or sleeps; fails after
/// timeout_s.
struct waiting {
  double until;
  unsigned rounds;
};
void poll_again(struct waiting* waiting, const char* for_what);

// The other end.
void send_to_other_end(struct end* end, const void* data, size_t size);
void receive_from_other_end(struct end* end, void* data, size_t size);
/// A barrier of both ends.
void synchronize(struct end* end);

// The plugin.
void load(struct plugin* plugin, const char* path, int version);
void unload(struct plugin* plugin);

// Connections.
struct handle {
  unsigned char bytes[HANDLE_BYTES];
};
/// Listens, and checks that the plugin writes only to the handle.
void* listen_at(struct end* end, struct handle* handle);
void* accept_one(struct end* end, void* listen_comm);
/// `handle` keeps the state between calls.
void* connect_to(struct end* end, struct handle* handle);
/// Opens a connection between the ends: the connector's comm sends, the listener's comm receives.
void* open_connection(struct end* end);
void close_connection(struct end* end, void* comm);

// Memory, between guard pages.
struct region {
  unsigned char* bytes;
  size_t size;  ///< whole pages
  void* mr;     ///< registered with the comm it was made for
};
enum { UNTOUCHED = 0xEE };
struct region region_register(struct end* end, void* comm, size_t size);
void region_release(struct end* end, void* comm, struct region* region);
/// Maps without registering.
struct region region_map(size_t size);
void region_unmap(struct region* region);

// Contents of messages, distinguished by a seed.
uint64_t content_of(int series, int number);
void fill(unsigned char* bytes, size_t size, uint64_t seed);
void check_filled(const unsigned char* bytes, size_t size, uint64_t seed, const char* what);
/// Whether all bytes are UNTOUCHED.
void check_untouched(const unsigned char* bytes, size_t size, const char* what);
bool is_filled(const unsigned char* bytes, size_t size, uint64_t seed);

// Requests. These retry while the plugin returns a NULL request.
void* send_one(struct end* end, void* comm, void* data, size_t size, int tag, void* mr);
void* receive_one(struct end* end, void* comm, void* data, size_t size, int tag, void* mr);
/// A single call: NULL when the plugin has no room.
void* try_send(struct end* end, void* comm, void* data, size_t size, int tag, void* mr);
void* try_receive(struct end* end, void* comm, void* data, size_t size, int tag, void* mr);
/// Tests until done. Returns the size of the first message.
int finish(struct end* end, void* request);
/// As finish, and checks that the message has `size` bytes.
void finish_with(struct end* end, void* request, size_t size, const char* what);
/// Tests until the request is done (true) or test fails (false).
bool wait_done_or_failed(struct end* end, void* request);

/// Sends a message from connector to listener and checks its content.
void exchange(struct end* end, void* comm, size_t size, uint64_t seed);

/// Stops a process with SIGSTOP; returns when all of its threads have stopped.
void stop_process(pid_t pid);

// Resources of this process.
int open_files(void);
int running_threads(void);
long resident_bytes(void);

/// A connection from this end to itself, made by one thread.
struct pair {
  void* send;
  void* recv;
};
struct pair open_pair(struct end* end);
void close_pair(struct end* end, struct pair* pair);
/// Sends a message over the pair and checks its content.
void exchange_self(struct end* end, const struct pair* pair, size_t size, uint64_t seed);
