// SPDX-License-Identifier: Apache-2.0
// regMr, regMrDmaBuf, deregMr.
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "rules.h"

enum { MIB = 1 << 20, COMMS = 4 };

// Registering and deregistering must not use up memory. Measured after a first part, when caches are filled.

enum { FIRST_PART = 2000, REGISTRATIONS = 20000 };

static void many(struct end* end) {
  struct pair pair = open_pair(end);
  struct region region = region_map(64 * 4096);
  long before = 0;
  for (int i = 0; i < REGISTRATIONS; i++) {
    void* mrs[4];
    for (int k = 0; k < 4; k++) {
      void* comm = k % 2 ? pair.send : pair.recv;
      unsigned char* at = region.bytes + (size_t)((i * 7 + k * 13) % 4096);
      expect_success(end->net->reg_mr(comm, at, (size_t)(1 + (i * 31) % 200000), NCCL_PTR_HOST, &mrs[k]));
    }
    for (int k = 0; k < 4; k++) expect_success(end->net->dereg_mr(k % 2 ? pair.send : pair.recv, mrs[k]));
    if (i == FIRST_PART) before = resident_bytes();
    if (i % 1000 == 0) step("registration %d", i);
  }
  const long grown = resident_bytes() - before;
#ifndef PARALET_SANITIZED  // sanitizers keep freed memory; LeakSanitizer finds leaks there
  expect(grown < (REGISTRATIONS - FIRST_PART) * 4L * 16L,
         "expected no memory growth per registration, got %ld bytes in all", grown);
#endif
  (void)grown;
  exchange_self(end, &pair, 1000, 1);
  region_unmap(&region);
  close_pair(end, &pair);
}

// With regIsGlobal a registration of one comm is valid for all comms of the device.

static void global(struct end* end, bool sends) {
  struct properties properties;
  expect_success(end->net->get_properties(end->dev, &properties));
  void* comms[COMMS];
  for (int i = 0; i < COMMS; i++) comms[i] = open_connection(end);
  struct region region = region_register(end, comms[0], (size_t)COMMS * MIB);
  void* requests[COMMS];
  for (int i = 0; i < COMMS; i++) {
    void* mr = region.mr;
    if (!properties.reg_is_global && i > 0) {
      expect_success(end->net->reg_mr(comms[i], region.bytes, region.size, NCCL_PTR_HOST, &mr));
    }
    unsigned char* at = region.bytes + (size_t)i * MIB;
    if (sends) fill(at, MIB, (uint64_t)i);
    requests[i] = sends ? send_one(end, comms[i], at, MIB, 1, mr) : receive_one(end, comms[i], at, MIB, 1, mr);
  }
  for (int i = 0; i < COMMS; i++) {
    finish_with(end, requests[i], MIB, "a message over one of four comms");
    if (!sends) check_filled(region.bytes + (size_t)i * MIB, MIB, (uint64_t)i, "a message");
  }
  synchronize(end);
  if (properties.reg_is_global) {
    step("a region of a closed comm");
    close_connection(end, comms[0]);  // the region outlives its comm
    void* request = sends ? send_one(end, comms[1], region.bytes, MIB, 1, region.mr)
                          : receive_one(end, comms[1], region.bytes, MIB, 1, region.mr);
    finish_with(end, request, MIB, "a message from a region whose comm is closed");
    region_release(end, comms[1], &region);
  }
  synchronize(end);
  for (int i = properties.reg_is_global; i < COMMS; i++) close_connection(end, comms[i]);
  if (!properties.reg_is_global) region_unmap(&region);
}

static void global_listener(struct end* end) { global(end, false); }
static void global_connector(struct end* end) { global(end, true); }

// Two registrations of the same bytes are independent.

static void overlapping(struct end* end) {
  struct pair pair = open_pair(end);
  struct region from = region_register(end, pair.send, MIB);
  struct region to = region_register(end, pair.recv, MIB);
  void* again = NULL;
  void* part = NULL;
  expect_success(end->net->reg_mr(pair.recv, to.bytes, MIB, NCCL_PTR_HOST, &again));
  expect_success(end->net->reg_mr(pair.recv, to.bytes + 4097, 8000, NCCL_PTR_HOST, &part));
  expect_success(end->net->dereg_mr(pair.recv, to.mr));
  to.mr = again;
  fill(from.bytes, MIB, 1);
  void* received = receive_one(end, pair.recv, to.bytes, MIB, 1, again);
  finish_with(end, send_one(end, pair.send, from.bytes, MIB, 1, from.mr), MIB, "a sent message");
  finish_with(end, received, MIB, "a received message");
  check_filled(to.bytes, MIB, 1, "a message");
  received = receive_one(end, pair.recv, to.bytes + 4097, 8000, 1, part);
  finish_with(end, send_one(end, pair.send, from.bytes, 8000, 1, from.mr), 8000, "a sent message");
  finish_with(end, received, 8000, "a received message");
  check_filled(to.bytes + 4097, 8000, 1, "a message");
  expect_success(end->net->dereg_mr(pair.recv, part));
  region_release(end, pair.send, &from);
  region_release(end, pair.recv, &to);
  close_pair(end, &pair);
}

// Unsupported memory is refused, and other memory still works.

static void refused(struct end* end) {
  struct properties properties;
  expect_success(end->net->get_properties(end->dev, &properties));
  struct pair pair = open_pair(end);
  struct region region = region_map(4096);
  void* mr = NULL;
  if (!(properties.ptr_support & NCCL_PTR_CUDA)) {
    expect(end->net->reg_mr(pair.send, region.bytes, 4096, NCCL_PTR_CUDA, &mr) != ncclSuccess,
           "expected an error for GPU memory, which ptrSupport denies");
    expect(end->net->reg_mr(pair.recv, region.bytes, 4096, NCCL_PTR_CUDA, &mr) != ncclSuccess,
           "expected an error for GPU memory, which ptrSupport denies");
  }
  expect(end->net->reg_mr(pair.send, region.bytes, 4096, 64, &mr) != ncclSuccess,
         "expected an error for an unknown type of memory");
  if (end->net->reg_mr_dma_buf && !(properties.ptr_support & NCCL_PTR_DMABUF)) {
    expect(end->net->reg_mr_dma_buf(pair.send, region.bytes, 4096, NCCL_PTR_CUDA, 0, -1, &mr) != ncclSuccess,
           "expected an error for a DMA buffer, which ptrSupport denies");
  }
  exchange_self(end, &pair, 1000, 1);
  region_unmap(&region);
  close_pair(end, &pair);
}

// When NCCL aborts, it deregisters and frees memory with receives in flight, and closes the comm afterwards.

enum { RECEIVES = 8 };

static void abandoned_listener(struct end* end) {
  void* stays = open_connection(end);
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)RECEIVES * MIB);
  void* requests[RECEIVES];
  for (int i = 0; i < RECEIVES; i++) {
    requests[i] = receive_one(end, comm, region.bytes + (size_t)i * MIB, MIB, 1, region.mr);
  }
  (void)requests;
  synchronize(end);
  sleep_s(2e-3);
  step("deregMr() with receives in flight");
  expect_success(end->net->dereg_mr(comm, region.mr));
  memset(region.bytes, UNTOUCHED, region.size);
  sleep_s(0.2);
  check_untouched(region.bytes, region.size, "memory that is deregistered");
  region_unmap(&region);
  sleep_s(0.05);
  close_connection(end, comm);
  synchronize(end);
  exchange(end, stays, 100000, 1);  // another connection to the same peer still works
  close_connection(end, stays);
}

static void abandoned_connector(struct end* end) {
  void* stays = open_connection(end);
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)RECEIVES * MIB);
  void* requests[RECEIVES];
  int taken = 0;
  synchronize(end);
  for (int i = 0; i < RECEIVES; i++) {
    void* request = NULL;
    if (end->net->isend(comm, region.bytes + (size_t)i * MIB, MIB, 1, region.mr, NULL, &request) != ncclSuccess) break;
    if (request) requests[taken++] = request;
  }
  for (int i = 0; i < taken; i++) wait_done_or_failed(end, requests[i]);
  synchronize(end);
  region_release(end, comm, &region);
  close_connection(end, comm);
  exchange(end, stays, 100000, 1);
  close_connection(end, stays);
}

// With regIsGlobal a region belongs to the device, so memory may be deregistered with another comm than the one whose
// messages use it. The first message is sent from such memory, the second one received into it.

static const size_t long_message = (size_t)64 * MIB;

/// Deregisters, and lets any access crash from then on. The addresses stay taken for a while, or another mapping could
/// get them.
static void take_back(struct end* end, void* registered_with, struct region* region) {
  step("deregMr() through another comm, with a message in flight");
  expect_success(end->net->dereg_mr(registered_with, region->mr));
  mprotect(region->bytes, region->size, PROT_NONE);
  sleep_s(0.1);
  region_unmap(region);
}

static struct region registered_elsewhere(struct end* end, void* other, void* user, size_t size, void** with) {
  struct properties properties;
  expect_success(end->net->get_properties(end->dev, &properties));
  *with = properties.reg_is_global ? other : user;
  return region_register(end, *with, size);
}

static void elsewhere_listener(struct end* end) {
  void* stays = open_connection(end);
  void* first = open_connection(end);
  void* second = open_connection(end);
  struct region whole = region_register(end, first, long_message);
  void* request = receive_one(end, first, whole.bytes, long_message, 1, whole.mr);
  synchronize(end);
  wait_done_or_failed(end, request);
  region_release(end, first, &whole);

  void* with = NULL;
  struct region into = registered_elsewhere(end, stays, second, (size_t)4 * MIB, &with);
  request = receive_one(end, second, into.bytes, (size_t)4 * MIB, 1, into.mr);
  synchronize(end);
  sleep_s(2e-3);
  take_back(end, with, &into);
  step("test() of a receive whose memory is deregistered");
  wait_done_or_failed(end, request);
  synchronize(end);
  exchange(end, stays, 100000, 1);
  close_connection(end, first);
  close_connection(end, second);
  close_connection(end, stays);
}

static void elsewhere_connector(struct end* end) {
  void* stays = open_connection(end);
  void* first = open_connection(end);
  void* second = open_connection(end);
  void* with = NULL;
  struct region from = registered_elsewhere(end, stays, first, long_message, &with);
  synchronize(end);
  sleep_s(20e-3);  // the receive is known: the message leaves at once
  void* request = send_one(end, first, from.bytes, long_message, 1, from.mr);
  take_back(end, with, &from);
  step("test() of a send whose memory is deregistered");
  wait_done_or_failed(end, request);

  struct region region = region_register(end, second, (size_t)4 * MIB);
  synchronize(end);
  request = NULL;
  const double until = now_s() + 0.5;
  while (!request && now_s() < until) {
    if (end->net->isend(second, region.bytes, (size_t)4 * MIB, 1, region.mr, NULL, &request) != ncclSuccess) break;
  }
  if (request) wait_done_or_failed(end, request);
  region_release(end, second, &region);
  synchronize(end);
  exchange(end, stays, 100000, 1);
  close_connection(end, first);
  close_connection(end, second);
  close_connection(end, stays);
}

// A range that is not mapped, or only in part, is no memory.

static void unmapped(struct end* end) {
  struct pair pair = open_pair(end);
  struct region region = region_map(64 * 4096);
  unsigned char* const bytes = region.bytes;
  void* const comms[] = {pair.send, pair.recv};
  expect(munmap(bytes + 4096, 4096) == 0, "cannot unmap a page");
  for (int i = 0; i < 2; i++) {
    void* mr = NULL;
    expect(end->net->reg_mr(comms[i], bytes, (size_t)64 * 4096, NCCL_PTR_HOST, &mr) != ncclSuccess,
           "expected an error for memory with an unmapped page");
    expect(end->net->reg_mr(comms[i], bytes + 4096 + 100, 10, NCCL_PTR_HOST, &mr) != ncclSuccess,
           "expected an error for memory on an unmapped page");
    expect(end->net->reg_mr(comms[i], bytes, SIZE_MAX - 4096, NCCL_PTR_HOST, &mr) != ncclSuccess,
           "expected an error for more memory than there is");
    expect_success(end->net->reg_mr(comms[i], bytes + 1, 4095, NCCL_PTR_HOST, &mr));
    expect_success(end->net->dereg_mr(comms[i], mr));
    expect_success(end->net->reg_mr(comms[i], bytes + 2 * 4096, (size_t)62 * 4096, NCCL_PTR_HOST, &mr));
    expect_success(end->net->dereg_mr(comms[i], mr));
  }
  exchange_self(end, &pair, 1000, 1);
  close_pair(end, &pair);
  region_unmap(&region);
}

const struct rule memory_rules[] = {
    {.name = "register-many", .sentence = "any number of regMr and deregMr calls uses up no memory", .alone = many},
    {.name = "register-global",
     .sentence = "with regIsGlobal a region is valid for all comms and outlives the comm that registered it",
     .listener = global_listener,
     .connector = global_connector},
    {.name = "register-overlapping",
     .sentence = "two registrations of the same bytes are independent",
     .alone = overlapping},
    {.name = "register-refused", .sentence = "memory that the device cannot use is refused", .alone = refused},
    {.name = "deregister-in-flight",
     .sentence = "deregistered memory is not written, even if receives into it were in flight",
     .listener = abandoned_listener,
     .connector = abandoned_connector,
     .environment = {{"PARALET_RETRY_TIME", "1s"}}},
    {.name = "deregister-elsewhere",
     .sentence =
         "memory deregistered with another comm than the one whose messages use it may be unmapped at once, and "
         "these messages finish or fail",
     .listener = elsewhere_listener,
     .connector = elsewhere_connector,
     .environment = {{"PARALET_RETRY_TIME", "1s"}}},
    {.name = "register-unmapped", .sentence = "memory that is not mapped is refused", .alone = unmapped},
    {0}};
