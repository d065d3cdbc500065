// SPDX-License-Identifier: Apache-2.0
// Grouped receives: one request for up to eight messages, which tags distinguish.
#include <stdio.h>
#include <string.h>

#include "rules.h"

enum { GROUP = MAX_GROUP, SLOT = 16384, CANARY = 0x5A5A5A5A, FLIGHTS = 32 };

struct message {
  unsigned char* bytes;
  size_t size;
  int tag;
};

/// Posts sends in any order that the plugin accepts, forwards or backwards. Sends of one tag keep their order.
static void send_all(struct end* end, void* comm, const struct region* region, const struct message* messages,
                     int count, bool backwards, void** requests) {
  bool posted[FLIGHTS * GROUP] = {false};
  struct waiting waiting = {0};
  for (int left = count; left > 0;) {
    bool idle = true;
    for (int k = 0; k < count; k++) {
      const int i = backwards ? count - 1 - k : k;
      bool next_of_tag = !posted[i];
      for (int before = 0; before < i && next_of_tag; before++) {
        next_of_tag = posted[before] || messages[before].tag != messages[i].tag;
      }
      if (!next_of_tag) continue;
      requests[i] = try_send(end, comm, messages[i].bytes, messages[i].size, messages[i].tag, region->mr);
      if (requests[i]) posted[i] = true, left--, idle = false;
    }
    if (!idle) waiting = (struct waiting){0};
    if (idle) poll_again(&waiting, "isend() to accept a message of a posted group");
  }
}

static void* receive_group(struct end* end, void* comm, const struct region* region, unsigned char* first, int n,
                           const int* tags) {
  void* data[GROUP];
  size_t sizes[GROUP];
  int own_tags[GROUP];
  void* mrs[GROUP];
  for (int i = 0; i < n; i++) {
    data[i] = first + (size_t)i * SLOT;
    sizes[i] = SLOT;
    own_tags[i] = tags[i];
    mrs[i] = region->mr;
  }
  struct waiting waiting = {0};
  for (;;) {
    void* request = NULL;
    expect_success(end->net->irecv(comm, n, data, sizes, own_tags, mrs, NULL, &request));
    // NCCL's arrays are on its stack: they are invalid after irecv returns.
    memset(data, 0, sizeof data);
    memset(mrs, 0, sizeof mrs);
    memset(own_tags, 0xFF, sizeof own_tags);
    if (request) return request;
    for (int i = 0; i < n; i++) data[i] = first + (size_t)i * SLOT, mrs[i] = region->mr, own_tags[i] = tags[i];
    poll_again(&waiting, "irecv() to accept a group");
  }
}

/// Tests until done. Fails when test() writes more than n sizes.
static void finish_group(struct end* end, void* request, int n, int* sizes) {
  int written[GROUP + 8];
  for (int i = 0; i < GROUP + 8; i++) written[i] = CANARY;
  int done = 0;
  struct waiting waiting = {0};
  for (;;) {
    expect_success(end->net->test(request, &done, written));
    for (int i = n; i < GROUP + 8; i++) {
      expect(written[i] == CANARY, "expected test() to write at most %d sizes, entry %d was written", n, i);
    }
    if (done) break;
    poll_again(&waiting, "test() to report a group as done");
  }
  memcpy(sizes, written, (size_t)n * sizeof *sizes);
}

// Groups of 1 to 8, sent backwards, with messages of different lengths.

static size_t length_of(int n, int i) { return i == 1 ? 0 : SLOT - (size_t)(n * 100 + i); }

static void tags_listener(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)GROUP * SLOT);
  for (int n = 1; n <= GROUP; n++) {
    step("a group of %d", n);
    memset(region.bytes, UNTOUCHED, region.size);
    int tags[GROUP];
    for (int i = 0; i < n; i++) tags[i] = 1000 - 7 * i;  // neither small nor ascending
    int sizes[GROUP];
    finish_group(end, receive_group(end, comm, &region, region.bytes, n, tags), n, sizes);
    for (int i = 0; i < n; i++) {
      const unsigned char* at = region.bytes + (size_t)i * SLOT;
      const size_t size = length_of(n, i);
      expect((size_t)sizes[i] == size, "expected %zu bytes for tag %d of a group of %d, got %d", size, tags[i], n,
             sizes[i]);
      check_filled(at, size, content_of(n, i), "a message of a group");
      check_untouched(at + size, SLOT - size, "memory after a message of a group");
    }
    check_untouched(region.bytes + (size_t)n * SLOT, region.size - (size_t)n * SLOT, "memory after the group");
  }
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

static void tags_connector(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)GROUP * SLOT);
  for (int n = 1; n <= GROUP; n++) {
    step("a group of %d", n);
    struct message messages[GROUP];
    void* requests[GROUP];
    for (int i = 0; i < n; i++) {
      messages[i] = (struct message){region.bytes + (size_t)i * SLOT, length_of(n, i), 1000 - 7 * i};
      fill(messages[i].bytes, messages[i].size, content_of(n, i));
    }
    send_all(end, comm, &region, messages, n, true, requests);
    for (int i = 0; i < n; i++) finish_with(end, requests[i], messages[i].size, "a message of a group");
  }
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

// A group is done only when all its messages have arrived. sizes may be NULL.

static void whole_listener(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)GROUP * SLOT);
  const int tags[GROUP] = {0, 1, 2, 3, 4, 5, 6, 7};
  void* request = receive_group(end, comm, &region, region.bytes, GROUP, tags);
  synchronize(end);
  receive_from_other_end(end, &(char){0}, 1);  // all but one message were sent
  step("test() of an incomplete group");
  for (int i = 0; i < 200; i++) {
    int done = 0;
    expect_success(end->net->test(request, &done, NULL));
    expect(!done, "expected a group not to be done before all messages have arrived");
    sleep_s(0.5e-3);
  }
  synchronize(end);
  int done = 0;
  struct waiting waiting = {0};
  for (;;) {
    expect_success(end->net->test(request, &done, NULL));
    if (done) break;
    poll_again(&waiting, "test() to report a group as done");
  }
  for (int i = 0; i < GROUP; i++) check_filled(region.bytes + (size_t)i * SLOT, SLOT, (uint64_t)i, "a message");
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

static void whole_connector(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)GROUP * SLOT);
  void* requests[GROUP];
  for (int i = 0; i < GROUP; i++) fill(region.bytes + (size_t)i * SLOT, SLOT, (uint64_t)i);
  synchronize(end);
  for (int i = 0; i < GROUP - 1; i++) {
    requests[i] = send_one(end, comm, region.bytes + (size_t)i * SLOT, SLOT, i, region.mr);
  }
  send_to_other_end(end, &(char){0}, 1);
  synchronize(end);
  requests[GROUP - 1] = send_one(end, comm, region.bytes + (size_t)(GROUP - 1) * SLOT, SLOT, GROUP - 1, region.mr);
  for (int i = 0; i < GROUP; i++) finish_with(end, requests[i], SLOT, "a message of a group");
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

// 32 groups of 8 with the same tags, all posted before any test(): 256 sends of one comm. The n-th send of a tag
// belongs to the n-th group.

static void flights_listener(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)FLIGHTS * GROUP * SLOT);
  void* requests[FLIGHTS];
  const int tags[GROUP] = {3, 1, 4, 15, 9, 2, 6, 5};
  step("%d groups of %d without a test()", FLIGHTS, GROUP);
  for (int flight = 0; flight < FLIGHTS; flight++) {
    unsigned char* first = region.bytes + (size_t)flight * GROUP * SLOT;
    requests[flight] = receive_group(end, comm, &region, first, GROUP, tags);
  }
  synchronize(end);
  for (int flight = 0; flight < FLIGHTS; flight++) {
    int sizes[GROUP];
    finish_group(end, requests[flight], GROUP, sizes);
    for (int i = 0; i < GROUP; i++) {
      expect(sizes[i] == SLOT - flight, "expected %d bytes for slot %d of group %d, got %d", SLOT - flight, i, flight,
             sizes[i]);
      check_filled(region.bytes + (size_t)(flight * GROUP + i) * SLOT, (size_t)(SLOT - flight),
                   content_of(flight, tags[i]), "a message of one of many groups");
    }
  }
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

static void flights_connector(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)FLIGHTS * GROUP * SLOT);
  struct message messages[FLIGHTS * GROUP];
  void* requests[FLIGHTS * GROUP];
  const int tags[GROUP] = {1, 2, 3, 4, 5, 6, 9, 15};
  for (int flight = 0; flight < FLIGHTS; flight++) {
    for (int i = 0; i < GROUP; i++) {
      struct message* message = &messages[flight * GROUP + i];
      *message = (struct message){region.bytes + (size_t)(flight * GROUP + i) * SLOT, (size_t)(SLOT - flight),
                                  tags[(i + flight) % GROUP]};  // a different order in each group
      fill(message->bytes, message->size, content_of(flight, message->tag));
    }
  }
  step("%d sends without a test()", FLIGHTS * GROUP);
  send_all(end, comm, &region, messages, FLIGHTS * GROUP, false, requests);
  synchronize(end);
  for (int i = 0; i < FLIGHTS * GROUP; i++) finish_with(end, requests[i], messages[i].size, "a message of a group");
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

// A tag may be in a group more than once (two channels of one peer): its sends fill the slots in order.

static void twice_listener(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)GROUP * SLOT);
  const int tags[5] = {8, 5, 8, 8, 5};
  int sizes[GROUP];
  for (int round = 0; round < 4; round++) {
    memset(region.bytes, UNTOUCHED, region.size);
    finish_group(end, receive_group(end, comm, &region, region.bytes, 5, tags), 5, sizes);
    const uint64_t expected[5] = {80, 50, 81, 82, 51};
    for (int i = 0; i < 5; i++) {
      expect(sizes[i] == 5000, "expected 5000 bytes in slot %d, got %d", i, sizes[i]);
      check_filled(region.bytes + (size_t)i * SLOT, 5000, expected[i] + 1000 * (uint64_t)round, "one of equal tags");
    }
  }
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

static void twice_connector(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)GROUP * SLOT);
  for (int round = 0; round < 4; round++) {
    const uint64_t contents[5] = {50, 51, 80, 81, 82};
    struct message messages[5];
    void* requests[5];
    for (int i = 0; i < 5; i++) {
      messages[i] = (struct message){region.bytes + (size_t)i * SLOT, 5000, (int)(contents[i] / 10)};
      fill(messages[i].bytes, 5000, contents[i] + 1000 * (uint64_t)round);
    }
    send_all(end, comm, &region, messages, 5, false, requests);
    for (int i = 0; i < 5; i++) finish_with(end, requests[i], 5000, "one of equal tags");
  }
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

// Groups of changing size, including single receives, follow each other on one comm.

enum { CHANGES = 60, OPEN = 6 };

static int members(int group) { return 1 + (group * 5) % GROUP; }

static void mixed_listener(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)OPEN * GROUP * SLOT);
  void* requests[OPEN];
  const int tags[GROUP] = {10, 11, 12, 13, 14, 15, 16, 17};
  for (int group = 0; group < CHANGES + OPEN; group++) {
    unsigned char* first = region.bytes + (size_t)(group % OPEN) * GROUP * SLOT;
    if (group >= OPEN) {
      const int old = group - OPEN;
      int sizes[GROUP];
      finish_group(end, requests[group % OPEN], members(old), sizes);
      for (int i = 0; i < members(old); i++) {
        const size_t size = (size_t)((old * 977 + i * 131) % (SLOT + 1));
        expect((size_t)sizes[i] == size, "expected %zu bytes for member %d of group %d, got %d", size, i, old,
               sizes[i]);
        check_filled(first + (size_t)i * SLOT, size, content_of(old, i), "a message of changing groups");
      }
      step("group %d", old);
    }
    if (group < CHANGES) requests[group % OPEN] = receive_group(end, comm, &region, first, members(group), tags);
  }
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

static void mixed_connector(struct end* end) {
  void* comm = open_connection(end);
  struct region region = region_register(end, comm, (size_t)GROUP * SLOT);
  for (int group = 0; group < CHANGES; group++) {
    struct message messages[GROUP];
    void* requests[GROUP];
    for (int i = 0; i < members(group); i++) {
      const size_t size = (size_t)((group * 977 + i * 131) % (SLOT + 1));
      messages[i] = (struct message){region.bytes + (size_t)i * SLOT, size, 10 + i};
      fill(messages[i].bytes, size, content_of(group, i));
    }
    send_all(end, comm, &region, messages, members(group), group % 2, requests);
    for (int i = 0; i < members(group); i++) finish_with(end, requests[i], messages[i].size, "a message of a group");
  }
  region_release(end, comm, &region);
  synchronize(end);
  close_connection(end, comm);
}

// More than maxRecvs in one group is an error, not a crash.

static void too_many(struct end* end) {
  struct properties properties;
  expect_success(end->net->get_properties(end->dev, &properties));
  if (properties.max_recvs != GROUP) return;
  struct pair pair = open_pair(end);
  struct region region = region_register(end, pair.recv, SLOT);
  const int wrong[] = {GROUP + 1, 0, -1};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    void* data[GROUP + 1];
    size_t sizes[GROUP + 1];
    int tags[GROUP + 1];
    void* mrs[GROUP + 1];
    for (int k = 0; k <= GROUP; k++) data[k] = region.bytes, sizes[k] = 1, tags[k] = k, mrs[k] = region.mr;
    void* request = NULL;
    const ncclResult_t result = end->net->irecv(pair.recv, wrong[i], data, sizes, tags, mrs, NULL, &request);
    expect(result != ncclSuccess, "expected an error for a group of %d", wrong[i]);
  }
  region_release(end, pair.recv, &region);
  close_pair(end, &pair);
}

const struct rule group_rules[] = {
    {.name = "group-tags",
     .sentence = "tags select the slots of a group of 1 to 8 for sends in any order; test() writes n sizes",
     .listener = tags_listener,
     .connector = tags_connector},
    {.name = "group-whole",
     .sentence = "a group is done when all its messages have arrived; sizes may be NULL",
     .listener = whole_listener,
     .connector = whole_connector},
    {.name = "group-in-flight",
     .sentence = "a comm accepts 32 groups of 8 with the same tags, or their 256 sends, before any test()",
     .listener = flights_listener,
     .connector = flights_connector},
    {.name = "group-equal-tags",
     .sentence = "a tag that occurs more than once in a group gets its messages in order",
     .listener = twice_listener,
     .connector = twice_connector},
    {.name = "group-mixed",
     .sentence = "groups of changing size follow each other",
     .listener = mixed_listener,
     .connector = mixed_connector},
    {.name = "group-size", .sentence = "a group of more than maxRecvs is an error", .alone = too_many},
    {0}};
