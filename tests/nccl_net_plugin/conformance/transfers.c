// SPDX-License-Identifier: Apache-2.0
// isend, irecv, test: one message per receive.
#include <stdio.h>
#include <string.h>

#include "log.h"
#include "rules.h"

enum {
  KIB = 1024,
  MIB = 1024 * KIB,
  REQUESTS = 32,  // NCCL_NET_MAX_REQUESTS
  MOST_SENDS = REQUESTS * MAX_GROUP,
};

// Messages of every size, one after the other and then all in flight.

static const size_t sizes[] = {0, 1, 8, 64 * KIB - 1, 128 * KIB, 512 * KIB, 4 * MIB};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

static void sizes_of_all(struct end* end, bool sends) {
  void* comm = open_connection(end);
  for (int i = 0; i < SIZES; i++) {
    step("a message of %zu bytes", sizes[i]);
    exchange(end, comm, sizes[i], (uint64_t)i);
  }
  step("messages of all sizes in flight");
  struct region regions[SIZES];
  void* requests[SIZES];
  for (int i = 0; i < SIZES; i++) {
    regions[i] = region_register(end, comm, sizes[i] + 64);
    if (sends) fill(regions[i].bytes, sizes[i], 100 + (uint64_t)i);
  }
  for (int i = 0; i < SIZES; i++) {
    requests[i] = sends ? send_one(end, comm, regions[i].bytes, sizes[i], 1, regions[i].mr)
                        : receive_one(end, comm, regions[i].bytes, sizes[i], 1, regions[i].mr);
  }
  for (int i = SIZES - 1; i >= 0; i--) {  // in the reverse order of their completion
    finish_with(end, requests[i], sizes[i], sends ? "a sent message" : "a received message");
    if (!sends) {
      check_filled(regions[i].bytes, sizes[i], 100 + (uint64_t)i, "a message");
      check_untouched(regions[i].bytes + sizes[i], regions[i].size - sizes[i], "memory after a message");
    }
  }
  for (int i = 0; i < SIZES; i++) region_release(end, comm, &regions[i]);
  synchronize(end);
  close_connection(end, comm);
}

static void sizes_listener(struct end* end) { sizes_of_all(end, false); }
static void sizes_connector(struct end* end) { sizes_of_all(end, true); }

// Messages at odd addresses of one registered region, side by side.

static const size_t unaligned[][2] = {  // offset, size
    {1, 7}, {8, 1}, {9, 4097}, {4106 + 3, 65535}, {70001, 3}, {70004, 131073}, {201077, 1}, {201079, 100003}};
enum { UNALIGNED = sizeof unaligned / sizeof unaligned[0], UNALIGNED_BYTES = 400000 };

static void unaligned_ends(struct end* end, bool sends) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, UNALIGNED_BYTES);
  void* requests[UNALIGNED];
  for (int i = 0; i < UNALIGNED; i++) {
    // The sender uses other offsets: the alignments of the two sides are independent.
    unsigned char* at = region.bytes + unaligned[i][0] + (sends ? 5 : 0);
    if (sends) fill(at, unaligned[i][1], (uint64_t)i);
    requests[i] = sends ? send_one(end, comm, at, unaligned[i][1], 1, region.mr)
                        : receive_one(end, comm, at, unaligned[i][1], 1, region.mr);
  }
  size_t reached = 0;
  for (int i = 0; i < UNALIGNED; i++) {
    finish_with(end, requests[i], unaligned[i][1], sends ? "a sent message" : "a received message");
  }
  for (int i = 0; i < UNALIGNED && !sends; i++) {
    const size_t offset = unaligned[i][0];
    check_untouched(region.bytes + reached, offset - reached, "memory between two messages");
    check_filled(region.bytes + offset, unaligned[i][1], (uint64_t)i, "an unaligned message");
    reached = offset + unaligned[i][1];
  }
  if (!sends) check_untouched(region.bytes + reached, region.size - reached, "memory after the last message");
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

static void unaligned_listener(struct end* end) { unaligned_ends(end, false); }
static void unaligned_connector(struct end* end) { unaligned_ends(end, true); }

// NCCL posts receives of the full step size and sends the bytes that it has.

static const size_t short_sends[] = {0, 1, 100, 4095, 4096, 70000, 128 * KIB - 1, 128 * KIB};
enum { SHORT_SENDS = sizeof short_sends / sizeof short_sends[0], STEP = 128 * KIB };

static void short_listener(struct end* end) {
  void* comm = open_connection(end);
  struct region regions[SHORT_SENDS];
  void* requests[SHORT_SENDS];
  for (int i = 0; i < SHORT_SENDS; i++) {
    regions[i] = region_register(end, comm, STEP);
    requests[i] = receive_one(end, comm, regions[i].bytes, STEP, 1, regions[i].mr);
  }
  for (int i = 0; i < SHORT_SENDS; i++) {
    finish_with(end, requests[i], short_sends[i], "a message shorter than its receive");
    check_filled(regions[i].bytes, short_sends[i], (uint64_t)i, "a short message");
    check_untouched(regions[i].bytes + short_sends[i], regions[i].size - short_sends[i], "memory after it");
    region_release(end, comm, &regions[i]);
  }
  synchronize(end);
  close_connection(end, comm);
}

static void short_connector(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, STEP);
  for (int i = 0; i < SHORT_SENDS; i++) {
    fill(region.bytes, short_sends[i], (uint64_t)i);
    finish_with(end, send_one(end, comm, region.bytes, short_sends[i], 1, region.mr), short_sends[i], "a sent message");
  }
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

// A send larger than its receive violates the contract. It may fail or be cut, but must not write past the receive.

static void long_listener(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, 64 * KIB);
  void* request = receive_one(end, comm, region.bytes, 1000, 1, region.mr);
  synchronize(end);
  synchronize(end);
  wait_done_or_failed(end, request);
  check_untouched(region.bytes + 1000, region.size - 1000, "memory after a receive with a larger send");
  region_release(end, comm, &region);
  close_connection(end, comm);
  comm = open_connection(end);
  exchange(end, comm, 1000, 9);
  close_connection(end, comm);
}

static void long_connector(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, 64 * KIB);
  fill(region.bytes, region.size, 1);
  synchronize(end);
  void* request = NULL;
  bool refused = false;
  struct waiting waiting = {0};
  while (!request && !refused) {
    refused = end->net->isend(comm, region.bytes, region.size, 1, region.mr, NULL, &request) != ncclSuccess;
    if (!request && !refused) poll_again(&waiting, "isend() to accept or refuse a message");
  }
  if (request) wait_done_or_failed(end, request);
  region_release(end, comm, &region);
  close_connection(end, comm);  // the receive must finish or fail, at the latest because its peer has closed
  synchronize(end);
  comm = open_connection(end);
  exchange(end, comm, 1000, 9);
  close_connection(end, comm);
}

// Calls that cannot be right are refused, with one warning each, and harm no connection.

static void refused_send(struct end* end, void* comm, void* data, size_t size, void* mr, const char* what) {
  const int warnings = log_count(NCCL_LOG_WARN, "");
  void* request = NULL;
  expect(end->net->isend(comm, data, size, 1, mr, NULL, &request) != ncclSuccess, "expected isend to refuse %s", what);
  expect(!request, "expected no request for %s", what);
  const int added = log_count(NCCL_LOG_WARN, "") - warnings;
  expect(added == 1, "expected one warning about %s, got %d", what, added);
}

static void refused_receive(struct end* end, void* comm, void* data, size_t size, void* mr, const char* what) {
  const int warnings = log_count(NCCL_LOG_WARN, "");
  void* request = NULL;
  void* phandle = profiler_handle(0);
  int tag = 1;
  expect(end->net->irecv(comm, 1, &data, &size, &tag, &mr, &phandle, &request) != ncclSuccess,
         "expected irecv to refuse %s", what);
  expect(!request, "expected no request for %s", what);
  const int added = log_count(NCCL_LOG_WARN, "") - warnings;
  expect(added == 1, "expected one warning about %s, got %d", what, added);
}

static void misuse(struct end* end) {
  struct pair pair = open_pair(end);
  struct pair other = open_pair(end);
  struct region region = region_register(end, pair.send, 4096);
  struct region gone = region_register(end, pair.send, 4096);
  expect_success(end->net->dereg_mr(pair.send, gone.mr));
  unsigned char* const past = region.bytes + region.size - 10;

  refused_send(end, pair.send, NULL, 1000, NULL, "a send from NULL");
  refused_send(end, pair.send, NULL, 1000, region.mr, "a send from NULL with a memory handle");
  refused_send(end, pair.recv, region.bytes, 1000, region.mr, "a send on a comm that receives");
  refused_send(end, pair.send, past, 11, region.mr, "a send past the end of its memory");
  refused_send(end, pair.send, gone.bytes, 1000, gone.mr, "a send with a deregistered handle");
  refused_receive(end, pair.recv, NULL, 1000, NULL, "a receive at NULL");
  refused_receive(end, pair.recv, NULL, 1000, region.mr, "a receive at NULL with a memory handle");
  refused_receive(end, pair.send, region.bytes, 1000, region.mr, "a receive on a comm that sends");
  refused_receive(end, pair.recv, past, 11, region.mr, "a receive past the end of its memory");
  refused_receive(end, pair.recv, gone.bytes, 1000, gone.mr, "a receive with a deregistered handle");
  expect(end->net->dereg_mr(pair.send, gone.mr) != ncclSuccess, "expected deregMr to refuse a deregistered handle");

  step("messages after refused calls");
  void* received = receive_one(end, pair.recv, NULL, 0, 1, NULL);  // a message of no bytes needs no memory
  finish_with(end, send_one(end, pair.send, NULL, 0, 1, NULL), 0, "a send of no bytes from NULL");
  finish_with(end, received, 0, "a receive of no bytes at NULL");
  exchange_self(end, &pair, 100000, 1);
  exchange_self(end, &other, 100000, 2);
  region_release(end, pair.send, &region);
  region_unmap(&gone);
  close_pair(end, &pair);
  close_pair(end, &other);
}

// A message that is longer than its receive: both sides learn why, even when the sender closes at once.

static void told_listener(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, 8192);
  void* earlier = receive_one(end, comm, region.bytes, 1000, 2, region.mr);  // nothing is sent to it
  receive_one(end, comm, region.bytes + 4096, 1000, 1, region.mr);
  synchronize(end);
  step("test() of another receive after a message that was too long");
  expect(!wait_done_or_failed(end, earlier), "expected a receive to fail when its peer closes");
  expect(log_count(NCCL_LOG_WARN, "2000 bytes met a receive of 1000") > 0,
         "expected the receiver's log to name the message that was too long");
  synchronize(end);
  region_release(end, comm, &region);
  close_connection(end, comm);
}

static void told_connector(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, 8192);
  synchronize(end);
  step("a send that is longer than its receive");
  void* request = send_one(end, comm, region.bytes, 2000, 1, region.mr);
  expect(!wait_done_or_failed(end, request), "expected a send that is longer than its receive to fail");
  expect(log_count(NCCL_LOG_WARN, "2000 bytes met a receive of 1000") > 0,
         "expected the sender's log to name the message that was too long");
  region_release(end, comm, &region);
  close_connection(end, comm);
  synchronize(end);
}

// NCCL may post all its requests before it tests any.

static void flight_listener(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)REQUESTS * 8192);
  void* requests[REQUESTS];
  step("32 receives without a test()");
  for (int i = 0; i < REQUESTS; i++) {
    requests[i] = receive_one(end, comm, region.bytes + (size_t)i * 8192, 8192, 1, region.mr);
  }
  synchronize(end);
  for (int i = 0; i < REQUESTS; i++) {
    finish_with(end, requests[i], 8192, "a received message");
    check_filled(region.bytes + (size_t)i * 8192, 8192, (uint64_t)i, "a message of 32");
  }
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

static void flight_connector(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)REQUESTS * 8192);
  void* requests[REQUESTS];
  step("32 sends without a test()");
  for (int i = 0; i < REQUESTS; i++) {
    fill(region.bytes + (size_t)i * 8192, 8192, (uint64_t)i);
    requests[i] = send_one(end, comm, region.bytes + (size_t)i * 8192, 8192, 1, region.mr);
  }
  synchronize(end);
  for (int i = 0; i < REQUESTS; i++) finish_with(end, requests[i], 8192, "a sent message");
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

// A full comm returns a NULL request, without error or hang. There is room again after a test() that reports done.

static void full_listener(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)(MOST_SENDS + 1) * 64);
  void* requests[REQUESTS];
  synchronize(end);  // the connector has posted all it can, without any receive
  step("receives until irecv() returns NULL");
  for (int i = 0; i < REQUESTS; i++) {
    requests[i] = receive_one(end, comm, region.bytes + (size_t)i * 64, 64, 1, region.mr);
  }
  for (int i = 0; i < 100; i++) {
    expect(!try_receive(end, comm, region.bytes, 64, 1, region.mr), "expected a NULL request for a 33rd receive");
  }
  int count = 0;
  receive_from_other_end(end, &count, sizeof count);
  for (int i = 0; i < count; i++) {
    void** slot = &requests[i % REQUESTS];
    finish_with(end, *slot, 64, "a received message");
    check_filled(region.bytes + (size_t)i * 64, 64, (uint64_t)i, "a message");
    if (i + REQUESTS < count) {
      *slot = receive_one(end, comm, region.bytes + (size_t)(i + REQUESTS) * 64, 64, 1, region.mr);
    }
  }
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

static void full_connector(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)(MOST_SENDS + 1) * 64);
  void* requests[MOST_SENDS + 1];
  int count = 0;
  step("sends until isend() returns NULL");
  while (count <= MOST_SENDS) {
    fill(region.bytes + (size_t)count * 64, 64, (uint64_t)count);
    void* request = try_send(end, comm, region.bytes + (size_t)count * 64, 64, 1, region.mr);
    if (!request) break;
    requests[count++] = request;
  }
  expect(count <= MOST_SENDS, "expected a NULL request eventually without receives, isend() accepted %d", count);
  synchronize(end);
  step("the refused send, again");
  // There is room after test(), or after a receive if the plugin accepts sends only for posted receives.
  if (count > 0) finish_with(end, requests[0], 64, "a sent message");
  const int finished = count > 0;
  requests[count] = send_one(end, comm, region.bytes + (size_t)count * 64, 64, 1, region.mr);
  count++;
  while (count < REQUESTS) {  // at least as many receives are posted
    fill(region.bytes + (size_t)count * 64, 64, (uint64_t)count);
    requests[count] = send_one(end, comm, region.bytes + (size_t)count * 64, 64, 1, region.mr);
    count++;
  }
  send_to_other_end(end, &count, sizeof count);
  for (int i = finished; i < count; i++) finish_with(end, requests[i], 64, "a sent message");
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

// The data arrives although neither end calls anything after posting.

enum { ALONE_MESSAGES = 8 };

static void progress_listener(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)ALONE_MESSAGES * MIB);
  void* requests[ALONE_MESSAGES];
  for (int i = 0; i < ALONE_MESSAGES; i++) {
    requests[i] = receive_one(end, comm, region.bytes + (size_t)i * MIB, MIB, 1, region.mr);
  }
  synchronize(end);
  synchronize(end);
  step("data arriving without a call");
  struct waiting waiting = {0};
  for (int i = 0; i < ALONE_MESSAGES; i++) {
    while (!is_filled(region.bytes + (size_t)i * MIB, MIB, (uint64_t)i)) {
      poll_again(&waiting, "data to arrive without a call of either end");
      sleep_s(1e-3);
    }
  }
  synchronize(end);
  for (int i = 0; i < ALONE_MESSAGES; i++) finish_with(end, requests[i], MIB, "a received message");
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

static void progress_connector(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)ALONE_MESSAGES * MIB);
  void* requests[ALONE_MESSAGES];
  for (int i = 0; i < ALONE_MESSAGES; i++) fill(region.bytes + (size_t)i * MIB, MIB, (uint64_t)i);
  synchronize(end);
  for (int i = 0; i < ALONE_MESSAGES; i++) {
    requests[i] = send_one(end, comm, region.bytes + (size_t)i * MIB, MIB, 1, region.mr);
  }
  synchronize(end);
  synchronize(end);  // the listener has seen all data
  for (int i = 0; i < ALONE_MESSAGES; i++) finish_with(end, requests[i], MIB, "a sent message");
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

// As NCCL's proxy does: eight slots of one region in turn, varying sizes, the oldest request tested first.

enum { SLOTS = 8, STEPS = 200, SLOT_BYTES = 512 * KIB };

static size_t step_bytes(int number) {
  const size_t pattern[] = {SLOT_BYTES, 128 * KIB, 1, SLOT_BYTES - 1, 4096, 0, 70001};
  return pattern[number % 7];
}

static void proxy(struct end* end, bool sends) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)SLOTS * SLOT_BYTES);
  void* requests[SLOTS];
  int posted = 0;
  int done = 0;
  struct waiting waiting = {0};
  while (done < STEPS) {
    bool idle = true;
    if (posted < STEPS && posted < done + SLOTS) {
      unsigned char* slot = region.bytes + (size_t)(posted % SLOTS) * SLOT_BYTES;
      if (sends) fill(slot, step_bytes(posted), (uint64_t)posted);
      requests[posted % SLOTS] = sends ? try_send(end, comm, slot, step_bytes(posted), 7, region.mr)
                                       : try_receive(end, comm, slot, SLOT_BYTES, 7, region.mr);
      if (requests[posted % SLOTS]) posted++, idle = false;
    }
    if (done < posted) {
      int ready = 0;
      int size = -1;
      expect_success(end->net->test(requests[done % SLOTS], &ready, &size));
      if (ready) {
        expect((size_t)size == step_bytes(done), "expected %zu bytes in step %d, got %d", step_bytes(done), done, size);
        const unsigned char* slot = region.bytes + (size_t)(done % SLOTS) * SLOT_BYTES;
        if (!sends) check_filled(slot, step_bytes(done), (uint64_t)done, "a step");
        done++, idle = false;
        step("step %d", done);
      }
    }
    if (!idle) waiting = (struct waiting){0};
    if (idle) poll_again(&waiting, "the next step");
  }
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

static void proxy_listener(struct end* end) { proxy(end, false); }
static void proxy_connector(struct end* end) { proxy(end, true); }

// Requests are reused many times.

enum { REUSED = 5000 };

static void reuse(struct end* end, bool sends) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)REQUESTS * 8);
  void* requests[REQUESTS];
  for (int i = 0; i < REUSED; i++) {
    const int slot = i % REQUESTS;
    unsigned char* at = region.bytes + (size_t)slot * 8;
    if (i >= REQUESTS) {
      finish_with(end, requests[slot], 8, "one of many messages");
      if (!sends) check_filled(at, 8, (uint64_t)(i - REQUESTS), "one of many messages");
    }
    if (i % 1000 == 0) step("message %d", i);
    if (sends) fill(at, 8, (uint64_t)i);
    requests[slot] = sends ? send_one(end, comm, at, 8, 1, region.mr) : receive_one(end, comm, at, 8, 1, region.mr);
  }
  for (int i = 0; i < REQUESTS; i++) finish_with(end, requests[i], 8, "one of the last messages");
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

static void reuse_listener(struct end* end) { reuse(end, false); }
static void reuse_connector(struct end* end) { reuse(end, true); }

// A pending request may be tested any number of times, with and without a buffer for sizes.

static void pending_listener(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, 4096);
  void* request = receive_one(end, comm, region.bytes, 4096, 1, region.mr);
  step("test() of a receive without a send");
  for (int i = 0; i < 1000; i++) {
    int done = -1;
    int size = -1;
    expect_success(end->net->test(request, &done, i % 2 ? &size : NULL));
    expect(done == 0, "expected done to be 0 for a receive without a send, got %d", done);
  }
  synchronize(end);
  step("test() without a buffer for sizes");
  int done = 0;
  struct waiting waiting = {0};
  for (;;) {
    expect_success(end->net->test(request, &done, NULL));
    if (done) break;
    poll_again(&waiting, "test() to report done");
  }
  check_filled(region.bytes, 4096, 5, "a message");
  region_release(end, comm, &region);
  close_connection(end, comm);
}

static void pending_connector(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, 4096);
  fill(region.bytes, 4096, 5);
  synchronize(end);
  void* request = send_one(end, comm, region.bytes, 4096, 1, region.mr);
  int done = 0;
  struct waiting waiting = {0};
  for (;;) {
    expect_success(end->net->test(request, &done, NULL));
    if (done) break;
    poll_again(&waiting, "test() to report done");
  }
  region_release(end, comm, &region);
  close_connection(end, comm);
}

// When a send is done its buffer may be reused; the receiver still gets the original content.

static void overwrite_listener(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, MIB);
  for (int i = 0; i < 16; i++) {
    memset(region.bytes, UNTOUCHED, region.size);
    void* request = receive_one(end, comm, region.bytes, MIB, 1, region.mr);
    finish_with(end, request, MIB, "a received message");
    check_filled(region.bytes, MIB, (uint64_t)i, "a message whose source was overwritten once test() said done");
  }
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

static void overwrite_connector(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, MIB);
  for (int i = 0; i < 16; i++) {
    fill(region.bytes, MIB, (uint64_t)i);
    finish_with(end, send_one(end, comm, region.bytes, MIB, 1, region.mr), MIB, "a sent message");
    memset(region.bytes, 0, MIB);
  }
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

// Both directions at once, over two connections between the same devices.

static void both_ways(struct end* end, bool connects_first) {
  void* out = NULL;
  void* in = NULL;
  const char* role = end->role;
  for (int turn = 0; turn < 2; turn++) {
    const bool connects = connects_first == (turn == 0);
    end->role = connects ? "connector" : "listener";  // open_connection() depends on the role
    *(connects ? &out : &in) = open_connection(end);
  }
  end->role = role;
  struct region from = region_register(end, out, (size_t)SLOTS * SLOT_BYTES);
  struct region to = region_register(end, in, (size_t)SLOTS * SLOT_BYTES);
  const int mine = connects_first ? 1000 : 2000;
  const int theirs = connects_first ? 2000 : 1000;
  for (int round = 0; round < 4; round++) {
    void* sends[SLOTS];
    void* receives[SLOTS];
    for (int i = 0; i < SLOTS; i++) {
      const size_t at = (size_t)i * SLOT_BYTES;
      fill(from.bytes + at, SLOT_BYTES, content_of(mine + round, i));
      receives[i] = receive_one(end, in, to.bytes + at, SLOT_BYTES, 1, to.mr);
    }
    for (int i = 0; i < SLOTS; i++) {
      sends[i] = send_one(end, out, from.bytes + (size_t)i * SLOT_BYTES, SLOT_BYTES, 1, from.mr);
    }
    for (int i = 0; i < SLOTS; i++) {
      const size_t at = (size_t)i * SLOT_BYTES;
      finish_with(end, receives[i], SLOT_BYTES, "a received message");
      check_filled(to.bytes + at, SLOT_BYTES, content_of(theirs + round, i), "a message");
      finish_with(end, sends[i], SLOT_BYTES, "a sent message");
    }
  }
  region_release(end, out, &from);
  region_release(end, in, &to);
  synchronize(end);
  expect_success(end->net->close_send(out));
  expect_success(end->net->close_recv(in));
}

static void both_ways_listener(struct end* end) { both_ways(end, false); }
static void both_ways_connector(struct end* end) { both_ways(end, true); }

// NCCL presets a receive's request to 1 when it does not need the completion, and afterwards tests the request that it
// finds there.

static void optional_listener(struct end* end) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): as NCCL does
  void* const preset = (void*)NCCL_NET_OPTIONAL_RECV_COMPLETION;
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)SLOTS * 4096);
  void* requests[SLOTS];
  for (int i = 0; i < SLOTS; i++) {
    void* data = region.bytes + (size_t)i * 4096;
    size_t size = 4096;
    int tag = 1;
    struct waiting waiting = {0};
    for (;;) {
      requests[i] = preset;
      expect_success(end->net->irecv(comm, 1, &data, &size, &tag, &region.mr, NULL, &requests[i]));
      expect(requests[i] != preset,
             "expected irecv() to replace the preset request, because NCCL tests the request it finds");
      if (requests[i]) break;
      poll_again(&waiting, "irecv() to accept a receive");
    }
  }
  for (int i = 0; i < SLOTS; i++) {
    finish_with(end, requests[i], 4096, "a received message");
    check_filled(region.bytes + (size_t)i * 4096, 4096, (uint64_t)i, "a message");
  }
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

static void optional_connector(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)SLOTS * 4096);
  void* requests[SLOTS];
  for (int i = 0; i < SLOTS; i++) {
    fill(region.bytes + (size_t)i * 4096, 4096, (uint64_t)i);
    requests[i] = send_one(end, comm, region.bytes + (size_t)i * 4096, 4096, 1, region.mr);
  }
  for (int i = 0; i < SLOTS; i++) finish_with(end, requests[i], 4096, "a sent message");
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

// Profiler handles: an array of them or NULL for a receive, one or NULL for a send.

static void phandles_listener(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, 4096);
  for (int round = 0; round < 6; round++) {
    void* data[2] = {region.bytes, region.bytes + 2048};
    size_t lengths[2] = {2048, 2048};
    int tags[2] = {1, 2};
    void* mrs[2] = {region.mr, region.mr};
    void* phandles[2] = {round % 3 == 1 ? NULL : profiler_handle(0), profiler_handle(1)};
    void* request = NULL;
    struct waiting waiting = {0};
    for (;;) {
      expect_success(end->net->irecv(comm, 2, data, lengths, tags, mrs, round % 3 == 0 ? NULL : phandles, &request));
      if (request) break;
      poll_again(&waiting, "irecv() to accept a receive");
    }
    finish(end, request);
    check_filled(region.bytes, 2048, content_of(0, round), "a message");
    check_filled(region.bytes + 2048, 2048, content_of(1, round), "a message");
  }
  const char* fault = profiler_fault();
  expect(!fault, "expected profiler calls that keep NCCL's contract, but %s", fault);
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

static void phandles_connector(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, 4096);
  for (int round = 0; round < 6; round++) {
    void* requests[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
      fill(region.bytes + (size_t)i * 2048, 2048, content_of(i, round));
      struct waiting waiting = {0};
      for (;;) {
        void* phandle = round % 2 ? profiler_handle(round) : NULL;
        expect_success(
            end->net->isend(comm, region.bytes + (size_t)i * 2048, 2048, 1 + i, region.mr, phandle, &requests[i]));
        if (requests[i]) break;
        poll_again(&waiting, "isend() to accept a message");
      }
    }
    finish_with(end, requests[0], 2048, "a sent message");
    finish_with(end, requests[1], 2048, "a sent message");
  }
  const char* fault = profiler_fault();
  expect(!fault, "expected profiler calls that keep NCCL's contract, but %s", fault);
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

// Host memory needs no flush: the call succeeds, at once or with a request.

static void flush_listener(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, 8192);
  finish_with(end, receive_one(end, comm, region.bytes, 8192, 1, region.mr), 8192, "a received message");
  for (int n = 1; n <= 2; n++) {
    void* data[2] = {region.bytes, region.bytes + 4096};
    int lengths[2] = {4096, 4096};
    void* mrs[2] = {region.mr, region.mr};
    void* request = NULL;
    expect_success(end->net->iflush(comm, n, data, lengths, mrs, &request));
    int done = request == NULL;
    struct waiting waiting = {0};
    while (!done) {
      expect_success(end->net->test(request, &done, NULL));
      if (!done) poll_again(&waiting, "test() to report a flush as done");
    }
  }
  check_filled(region.bytes, 8192, 3, "a message that was flushed");
  region_release(end, comm, &region);
  close_connection(end, comm);
}

static void flush_connector(struct end* end) {
  void* comm = open_connection(end);
  exchange(end, comm, 8192, 3);
  close_connection(end, comm);
}

const struct rule transfer_rules[] = {
    {.name = "sizes",
     .sentence = "messages of 0 bytes to 4 MiB arrive intact, alone and together, and test() reports their sizes",
     .listener = sizes_listener,
     .connector = sizes_connector},
    {.name = "unaligned",
     .sentence = "messages may lie anywhere in a registered region",
     .listener = unaligned_listener,
     .connector = unaligned_connector},
    {.name = "short-sends",
     .sentence = "a send may be smaller than its receive; memory after the message is not written",
     .listener = short_listener,
     .connector = short_connector},
    {.name = "long-send",
     .sentence = "a send larger than its receive never writes beyond it",
     .listener = long_listener,
     .connector = long_connector,
     .environment = {{"PARALET_RETRY_TIME", "1s"}}},
    {.name = "misuse",
     .sentence =
         "NULL data, the wrong comm, memory outside its registration and stale handles are refused by the call, "
         "with one warning, and harm nothing else",
     .alone = misuse},
    {.name = "long-send-told",
     .sentence = "a send larger than its receive fails on both sides, and both logs name it",
     .listener = told_listener,
     .connector = told_connector,
     .places = TWO_PROCESSES_OR_HOSTS,
     .environment = {{"PARALET_RETRY_TIME", "1s"}}},
    {.name = "in-flight",
     .sentence = "a comm accepts 32 requests before any test()",
     .listener = flight_listener,
     .connector = flight_connector},
    {.name = "full",
     .sentence = "a full comm returns a NULL request, and the call can be repeated",
     .listener = full_listener,
     .connector = full_connector},
    {.name = "progress",
     .sentence = "data arrives without any call of either end",
     .listener = progress_listener,
     .connector = progress_connector},
    {.name = "proxy",
     .sentence = "eight steps in flight in a ring of slots, as in NCCL's proxy",
     .listener = proxy_listener,
     .connector = proxy_connector},
    {.name = "reuse",
     .sentence = "test() frees requests for reuse, 5,000 times",
     .listener = reuse_listener,
     .connector = reuse_connector},
    {.name = "pending-test",
     .sentence = "test() of a pending request reports so any number of times; sizes may be NULL",
     .listener = pending_listener,
     .connector = pending_connector},
    {.name = "overwrite",
     .sentence = "once a send is done its buffer may be overwritten",
     .listener = overwrite_listener,
     .connector = overwrite_connector},
    {.name = "both-ways",
     .sentence = "two connections in opposite directions work at once",
     .listener = both_ways_listener,
     .connector = both_ways_connector},
    {.name = "optional-completion",
     .sentence = "irecv replaces a request that was preset to 1",
     .listener = optional_listener,
     .connector = optional_connector},
    {.name = "phandles",
     .sentence = "profiler handles are optional",
     .listener = phandles_listener,
     .connector = phandles_connector},
    {.name = "flush",
     .sentence = "iflush of host memory succeeds",
     .listener = flush_listener,
     .connector = flush_connector},
    {0}};
