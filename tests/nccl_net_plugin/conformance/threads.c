// SPDX-License-Identifier: Apache-2.0
// NCCL's threads: a service thread connects, registers and closes; progress threads post and test. One thread
// progresses a comm; several threads progress several comms of a device. Several communicators exist at once.
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "rules.h"

enum { THREADS = 4, WINDOW = 8, MESSAGES = 300, BYTES = 20000 };

struct worker {
  struct end end;  ///< a copy, so that contexts and roles can differ
  void* comm;
  bool sends;
  int number;
  int messages;
  pthread_t thread;
};

/// Transfers messages over the worker's comm, WINDOW at a time.
static void pump(struct worker* worker) {
  struct end* end = &worker->end;
  struct region region = region_register(end, worker->comm, (size_t)WINDOW * BYTES);
  void* requests[WINDOW];
  for (int i = 0; i < worker->messages + WINDOW; i++) {
    unsigned char* at = region.bytes + (size_t)(i % WINDOW) * BYTES;
    if (i >= WINDOW) {
      finish_with(end, requests[i % WINDOW], BYTES, "a message of a thread");
      const uint64_t seed = content_of(worker->number, i - WINDOW);
      if (!worker->sends) check_filled(at, BYTES, seed, "a message of a thread");
    }
    if (i >= worker->messages) continue;
    if (worker->sends) fill(at, BYTES, content_of(worker->number, i));
    requests[i % WINDOW] = worker->sends ? send_one(end, worker->comm, at, BYTES, 1, region.mr)
                                         : receive_one(end, worker->comm, at, BYTES, 1, region.mr);
    if (i % 50 == 0) step("message %d of thread %d", i, worker->number);
  }
  region_release(end, worker->comm, &region);
}

static void* work(void* argument) {
  struct worker* worker = argument;
  set_current_end(&worker->end);
  pump(worker);
  return NULL;
}

static void start(struct worker* worker, void* (*entry)(void*)) {
  const int error = pthread_create(&worker->thread, NULL, entry, worker);
  expect(error == 0, "cannot start a thread: %s", strerror(error));
}

// Several threads of one end, each with its own comm.

static void own_comms(struct end* end, bool sends) {
  struct worker workers[THREADS];
  for (int i = 0; i < THREADS; i++) {
    workers[i] =
        (struct worker){.end = *end, .comm = open_connection(end), .sends = sends, .number = i, .messages = MESSAGES};
  }
  for (int i = 0; i < THREADS; i++) start(&workers[i], work);
  for (int i = 0; i < THREADS; i++) pthread_join(workers[i].thread, NULL);
  synchronize(end);
  for (int i = 0; i < THREADS; i++) close_connection(end, workers[i].comm);
}

static void own_comms_listener(struct end* end) { own_comms(end, false); }
static void own_comms_connector(struct end* end) { own_comms(end, true); }

// Progress threads at work while the service thread connects, registers and closes.

static void service(struct end* end, bool sends) {
  enum { PROGRESS = 2, CONNECTIONS = 20 };
  struct worker workers[PROGRESS];
  for (int i = 0; i < PROGRESS; i++) {
    workers[i] =
        (struct worker){.end = *end, .comm = open_connection(end), .sends = sends, .number = i, .messages = MESSAGES};
  }
  for (int i = 0; i < PROGRESS; i++) start(&workers[i], work);
  for (int i = 0; i < CONNECTIONS; i++) {
    void* comm = open_connection(end);
    exchange(end, comm, 5000, (uint64_t)i);
    struct region region = region_register(end, comm, BYTES);
    region_release(end, comm, &region);
    close_connection(end, comm);
  }
  for (int i = 0; i < PROGRESS; i++) pthread_join(workers[i].thread, NULL);
  synchronize(end);
  for (int i = 0; i < PROGRESS; i++) close_connection(end, workers[i].comm);
}

static void service_listener(struct end* end) { service(end, false); }
static void service_connector(struct end* end) { service(end, true); }

// One thread posts, another tests: requests are not bound to a thread.

struct relay {
  struct worker worker;
  struct region region;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  void* requests[WINDOW];
  int posted;
  int tested;
};

static void* test_them(void* argument) {
  struct relay* relay = argument;
  set_current_end(&relay->worker.end);
  for (int i = 0; i < MESSAGES; i++) {
    pthread_mutex_lock(&relay->mutex);
    while (relay->posted == i) pthread_cond_wait(&relay->changed, &relay->mutex);
    void* request = relay->requests[i % WINDOW];
    pthread_mutex_unlock(&relay->mutex);
    finish_with(&relay->worker.end, request, BYTES, "a message that another thread posted");
    const unsigned char* at = relay->region.bytes + (size_t)(i % WINDOW) * BYTES;
    if (!relay->worker.sends) check_filled(at, BYTES, (uint64_t)i, "a message that another thread posted");
    pthread_mutex_lock(&relay->mutex);
    relay->tested = i + 1;
    pthread_cond_signal(&relay->changed);
    pthread_mutex_unlock(&relay->mutex);
    if (i % 50 == 0) step("message %d", i);
  }
  return NULL;
}

static void two_threads(struct end* end, bool sends) {
  struct relay relay = {.worker = {.end = *end, .comm = open_connection(end), .sends = sends}};
  pthread_mutex_init(&relay.mutex, NULL);
  pthread_cond_init(&relay.changed, NULL);
  void* comm = relay.worker.comm;
  relay.region = region_register(end, comm, (size_t)WINDOW * BYTES);
  start(&relay.worker, test_them);
  for (int i = 0; i < MESSAGES; i++) {
    pthread_mutex_lock(&relay.mutex);
    while (i - relay.tested == WINDOW) pthread_cond_wait(&relay.changed, &relay.mutex);
    pthread_mutex_unlock(&relay.mutex);
    unsigned char* at = relay.region.bytes + (size_t)(i % WINDOW) * BYTES;
    if (sends) fill(at, BYTES, (uint64_t)i);
    void* request = sends ? send_one(end, comm, at, BYTES, 1, relay.region.mr)
                          : receive_one(end, comm, at, BYTES, 1, relay.region.mr);
    pthread_mutex_lock(&relay.mutex);
    relay.requests[i % WINDOW] = request;
    relay.posted = i + 1;
    pthread_cond_signal(&relay.changed);
    pthread_mutex_unlock(&relay.mutex);
  }
  pthread_join(relay.worker.thread, NULL);
  pthread_mutex_destroy(&relay.mutex);
  pthread_cond_destroy(&relay.changed);
  region_release(end, comm, &relay.region);
  synchronize(end);
  close_connection(end, comm);
}

static void two_threads_listener(struct end* end) { two_threads(end, false); }
static void two_threads_connector(struct end* end) { two_threads(end, true); }

// Several communicators in one process: init for each, comms of each, and one that is finalized while others go on.

static void contexts(struct end* end, bool sends) {
  struct worker workers[THREADS];
  for (int i = 0; i < THREADS; i++) {
    workers[i] = (struct worker){.end = *end, .sends = sends, .number = i, .messages = i == 0 ? 10 : MESSAGES};
    expect_success(end->net->init(&workers[i].end.ctx, 100 + (uint64_t)i));
    workers[i].comm = open_connection(&workers[i].end);
  }
  for (int i = 0; i < THREADS; i++) start(&workers[i], work);
  pthread_join(workers[0].thread, NULL);
  synchronize(end);
  step("finalize() of one communicator while others work");
  close_connection(&workers[0].end, workers[0].comm);
  expect_success(end->net->finalize(workers[0].end.ctx));
  for (int i = 1; i < THREADS; i++) pthread_join(workers[i].thread, NULL);
  synchronize(end);
  for (int i = 1; i < THREADS; i++) {
    close_connection(&workers[i].end, workers[i].comm);
    expect_success(end->net->finalize(workers[i].end.ctx));
  }
  void* comm = open_connection(end);
  exchange(end, comm, 1000, 1);
  close_connection(end, comm);
}

static void contexts_listener(struct end* end) { contexts(end, false); }
static void contexts_connector(struct end* end) { contexts(end, true); }

const struct rule thread_rules[] = {
    {.name = "threads-own-comms",
     .sentence = "several threads, each with its own comm",
     .listener = own_comms_listener,
     .connector = own_comms_connector},
    {.name = "threads-service",
     .sentence = "a service thread connects, registers and closes while progress threads post and test",
     .listener = service_listener,
     .connector = service_connector},
    {.name = "threads-post-and-test",
     .sentence = "one thread posts, another tests",
     .listener = two_threads_listener,
     .connector = two_threads_connector},
    {.name = "contexts",
     .sentence = "several communicators at once, one finalized while others work",
     .listener = contexts_listener,
     .connector = contexts_connector,
     .since = 11},
    {0}};
