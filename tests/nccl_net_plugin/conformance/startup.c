// SPDX-License-Identifier: Apache-2.0
// Symbols, init, devices, properties, log lines.
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"
#include "rules.h"

static void symbols(struct end* end) {
  void* library = dlopen(end->plugin, RTLD_NOW | RTLD_LOCAL);
  expect(library, "expected dlopen to load the plugin, got the error: %s", dlerror());
  const char* name = NULL;
  for (int version = FIRST_VERSION; version <= LAST_VERSION; version++) {
    struct net net;
    const char* missing = net_from_library(&net, library, version);
    expect(!missing, "expected a complete ncclNetPlugin_v%d, but %s", version, missing);
    if (!name) name = net.name;
    expect(strcmp(name, net.name) == 0, "expected the same name in all versions, got %s and %s", name, net.name);
  }
  const char* difference = layout_difference();
  expect(!difference, "expected the header's structs to match NCCL's, %s differs", difference);
  dlclose(library);
}

static void devices(struct end* end) {
  // NCCL asks for the properties of device 0 right after init, before anything else.
  struct properties first;
  expect_success(end->net->get_properties(0, &first));
  int count = 0;
  int again = -1;
  expect_success(end->net->devices(&count));
  expect_success(end->net->devices(&again));
  expect(count >= 1, "expected at least one device, got %d", count);
  expect(count == again, "expected the same number of devices each time, got %d and %d", count, again);
}

static void properties(struct end* end) {
  int count = 0;
  expect_success(end->net->devices(&count));
  struct properties of[64];
  for (int dev = 0; dev < count && dev < 64; dev++) {
    struct properties* p = &of[dev];
    expect_success(end->net->get_properties(dev, p));
    expect(!p->written_beyond, "expected getProperties not to write past the end of its struct");
    expect(p->name && *p->name, "expected a name for device %d", dev);
    expect(!p->pci_path || access(p->pci_path, F_OK) == 0, "expected pciPath to exist or be NULL, got %s", p->pci_path);
    expect(p->speed > 0, "expected a speed above 0 Mbit/s for %s, got %d", p->name, p->speed);
    expect(p->latency >= 0, "expected a latency of 0 or more, got %g", (double)p->latency);
    expect(p->ptr_support & NCCL_PTR_HOST, "expected host memory among ptrSupport, got %#x", (unsigned)p->ptr_support);
    expect((p->ptr_support & ~7) == 0, "expected only known bits in ptrSupport, got %#x", (unsigned)p->ptr_support);
    expect(p->reg_is_global == 0 || p->reg_is_global == 1, "expected regIsGlobal 0 or 1, got %d", p->reg_is_global);
    expect(p->max_comms >= 1024, "expected room for a thousand comms or more, got %d", p->max_comms);
    expect(p->max_recvs >= 8, "expected grouped receives of 8, maxRecvs is %d", p->max_recvs);
    expect(p->device_type == NCCL_NET_DEVICE_HOST, "expected no device offload, netDeviceType is %d", p->device_type);
    expect(p->device_version == 0, "expected netDeviceVersion 0, got %d", p->device_version);
    if (end->net->version >= 9) {
      const size_t limit = (size_t)1 << 40;  // NCCL_MAX_NET_SIZE_BYTES
      expect(p->force_flush == 0 || p->force_flush == 1, "expected forceFlush 0 or 1, got %d", p->force_flush);
      expect(p->virtual_devices == 1 && p->first_virtual_device == dev, "expected device %d to be itself in vProps",
             dev);
      expect(p->max_p2p_bytes > 0 && p->max_p2p_bytes <= limit, "expected maxP2pBytes in 1..2^40, got %zu",
             p->max_p2p_bytes);
      expect(p->max_coll_bytes > 0 && p->max_coll_bytes <= limit, "expected maxCollBytes in 1..2^40, got %zu",
             p->max_coll_bytes);
    }
    if (end->net->version >= 11) {
      expect(p->max_multi_request >= 1, "expected maxMultiRequestSize 1 or more, got %d", p->max_multi_request);
    }
    if (end->net->version >= 12) {
      expect(p->rail >= -1 && p->plane >= -1, "expected railId and planeId of -1 or more, got %d and %d", p->rail,
             p->plane);
    }
    for (int other = 0; other < dev; other++) {
      expect(of[other].guid != p->guid, "expected different guids per device, %s and %s have the same", of[other].name,
             p->name);
    }
    struct properties again;
    expect_success(end->net->get_properties(dev, &again));
    expect(strcmp(again.name, p->name) == 0 && again.guid == p->guid,
           "expected the same properties twice for device %d", dev);
  }
}

static void wrong_device(struct end* end) {
  int count = 0;
  expect_success(end->net->devices(&count));
  const int wrong[] = {count, count + 1000, -1};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    struct properties p;
    unsigned char handle[HANDLE_BYTES] = {0};
    void* comm = NULL;
    expect(end->net->get_properties(wrong[i], &p) != ncclSuccess, "expected an error for getProperties(%d)", wrong[i]);
    expect(end->net->listen(end->ctx, wrong[i], handle, &comm) != ncclSuccess, "expected an error for listen(%d)",
           wrong[i]);
    struct handle good;
    void* listen_comm = listen_at(end, &good);
    expect(end->net->connect(end->ctx, wrong[i], good.bytes, &comm) != ncclSuccess, "expected an error for connect(%d)",
           wrong[i]);
    expect_success(end->net->close_listen(listen_comm));
  }
}

static void virtual_device(struct end* end) {
  if (!end->net->make_vdevice) return;
  int count = 0;
  expect_success(end->net->devices(&count));
  const int unknown[] = {0, count};
  const int negative[] = {0, -1};
  const int twice[] = {0, 0};
  const int many[NCCL_NET_MAX_DEVS_PER_NIC_V12 + 1] = {0};
  int made = -1;
  expect(end->net->make_vdevice(&made, 2, unknown) != ncclSuccess, "expected an error for an unknown device");
  expect(end->net->make_vdevice(&made, 2, negative) != ncclSuccess, "expected an error for device -1");
  expect(end->net->make_vdevice(&made, 2, twice) != ncclSuccess, "expected an error for a device twice");
  expect(end->net->make_vdevice(&made, 0, many) != ncclSuccess, "expected an error for no devices");
  expect(end->net->make_vdevice(&made, (int)(sizeof many / sizeof *many), many) != ncclSuccess,
         "expected an error for more devices than any NIC may have");
  int after = 0;
  expect_success(end->net->devices(&after));
  expect(after == count, "expected %d devices as before, got %d", count, after);
}

static void no_device(struct end* end) {
  struct plugin plugin;
  load(&plugin, end->plugin, end->net->version);
  step("init() with PARALET_IFNAME=doesnotexist");
  void* ctx = NULL;
  int count = -1;
  const ncclResult_t result = plugin.net.init(&ctx, 1);
  if (result == ncclSuccess) {
    expect_success(plugin.net.devices(&count));
    expect(count == 0, "expected init to fail or to find no device, got %d devices", count);
  }
  expect(result != ncclSuccess, "expected init to fail");
  expect(log_count(NCCL_LOG_WARN, "") == 1, "expected one warning, got %d", log_count(NCCL_LOG_WARN, ""));
  expect(log_count(NCCL_LOG_WARN, "PARALET_IFNAME") == 1, "expected the warning to name PARALET_IFNAME, got: %s",
         log_line_of(NCCL_LOG_WARN, 0)->text);
  expect(log_count(NCCL_LOG_WARN, "doesnotexist") == 1, "expected the warning to name the interface, got: %s",
         log_line_of(NCCL_LOG_WARN, 0)->text);
  unload(&plugin);
}

static void banner(struct end* end) {
  const int lines = log_count(NCCL_LOG_INFO, "lanes");
  expect(lines == 1, "expected one INFO line with version, devices and lanes after init, got %d", lines);
  expect(log_count(NCCL_LOG_INFO, end->net->name) >= 1, "expected the banner to name %s", end->net->name);
  if (end->net->finalize) {
    void* ctx = NULL;
    expect_success(end->net->init(&ctx, 2));
    expect(log_count(NCCL_LOG_INFO, "lanes") == 1, "expected no second banner for a second communicator");
    expect_success(end->net->finalize(ctx));
  }
  // Without privilege the machine limits socket buffers, so advice about net.core.rmem_max is allowed.
  expect(log_count(NCCL_LOG_WARN, "") == log_count(NCCL_LOG_WARN, "rmem_max"), "expected no warning, got: %s",
         log_line_of(NCCL_LOG_WARN, 0)->text);
  const char* fault = log_fault();
  expect(!fault, "expected log lines that keep NCCL's contract, but %s", fault);
}

static void optional_calls(struct end* end) {
  struct pair pair = open_pair(end);
  if (end->net->set_net_attr) expect_success(end->net->set_net_attr(end->ctx));
  struct region from = region_register(end, pair.send, 64);
  struct region to = region_register(end, pair.recv, 64);
  void* received = receive_one(end, pair.recv, to.bytes, 64, 1, to.mr);
  void* sent = send_one(end, pair.send, from.bytes, 64, 1, from.mr);
  finish_with(end, sent, 64, "a sent message");
  finish_with(end, received, 64, "a received message");
  // NCCL calls it if it is not NULL, with the request that test() reported as done.
  if (end->net->irecv_consumed) expect_success(end->net->irecv_consumed(pair.recv, 1, received));
  region_release(end, pair.send, &from);
  region_release(end, pair.recv, &to);
  close_pair(end, &pair);
}

/// Sockets of this process, UDP and TCP, whose packets have a TOS byte, apart from its ECN bits, which a transport may
/// set.
static int sockets_with(int tos) {
  int found = 0;
  for (int fd = 3; fd < 1024; fd++) {
    int type = 0;
    int domain = 0;
    int value = 0;
    socklen_t length = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) != 0) continue;
    if (type != SOCK_DGRAM && type != SOCK_STREAM) continue;
    length = sizeof domain;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 || domain != AF_INET) continue;
    length = sizeof value;
    found += getsockopt(fd, IPPROTO_IP, IP_TOS, &value, &length) == 0 && (value & ~3) == tos;
  }
  return found;
}

static void traffic_classes(struct end* end) {
  enum { CLASS = 0x68 };  // DSCP 26 (AF31)
  struct plugin plugin;
  load(&plugin, end->plugin, end->net->version);
  end->net = &plugin.net;
  void* plain = NULL;
  if (plugin.net.finalize) {
    traffic_class = 256;
    expect(plugin.net.init(&end->ctx, 1) != ncclSuccess, "expected init to refuse traffic class 256");
    traffic_class = NCCL_NET_TRAFFIC_CLASS_UNDEF;
    expect_success(plugin.net.init(&plain, 2));
  }
  traffic_class = CLASS;
  expect_success(plugin.net.init(&end->ctx, 3));
  step("messages with a traffic class");
  struct pair marked = open_pair(end);
  exchange_self(end, &marked, 100000, 1);
  expect(sockets_with(CLASS) > 0, "expected sockets that send with the communicator's traffic class");
  if (plain) {
    traffic_class = NCCL_NET_TRAFFIC_CLASS_UNDEF;
    void* const ctx = end->ctx;
    end->ctx = plain;
    const int before = sockets_with(CLASS);
    struct pair unmarked = open_pair(end);
    exchange_self(end, &unmarked, 100000, 2);
    expect(sockets_with(CLASS) == before, "expected no traffic class on the packets of a communicator without one");
    step("a region of one communicator in messages of the other");
    struct properties properties;
    expect_success(end->net->get_properties(end->dev, &properties));
    struct region region = region_register(end, marked.send, 8192);
    if (properties.reg_is_global) {
      void* received = receive_one(end, unmarked.recv, region.bytes, 4096, 1, region.mr);
      finish_with(end, send_one(end, unmarked.send, region.bytes + 4096, 4096, 1, region.mr), 4096, "a sent message");
      finish_with(end, received, 4096, "a received message");
    }
    region_release(end, marked.send, &region);
    close_pair(end, &unmarked);
    end->ctx = ctx;
  }
  close_pair(end, &marked);
  if (plugin.net.finalize) {
    expect_success(plugin.net.finalize(plain));
    expect_success(plugin.net.finalize(end->ctx));
  }
}

// A profiler plugin that wants events of the network gets them from isend, irecv and test.

static void profiled(struct end* end) {
  enum { SIZE = 300000, MESSAGES = 4 };
  profiler_listen();
  struct pair pair = open_pair(end);
  struct region from = region_register(end, pair.send, SIZE);
  struct region to = region_register(end, pair.recv, SIZE);
  for (int i = 0; i < MESSAGES; i++) {
    void* data = to.bytes;
    size_t size = SIZE;
    int tag = 1;
    void* phandle = profiler_handle(2 * i);
    void* received = NULL;
    void* sent = NULL;
    expect_success(end->net->irecv(pair.recv, 1, &data, &size, &tag, &to.mr, &phandle, &received));
    expect_success(end->net->isend(pair.send, from.bytes, SIZE, 1, from.mr, profiler_handle(2 * i + 1), &sent));
    finish_with(end, sent, SIZE, "a sent message");
    finish_with(end, received, SIZE, "a received message");
  }
  const struct profiled profile = profiler_calls();
  expect(profile.started >= 2 * MESSAGES, "expected an event or more per message, got %d", profile.started);
  expect(profile.started == profile.stopped, "expected all %d events to end, %d did", profile.started, profile.stopped);
  if (profile.messages) {
    expect(profile.messages == 2 * MESSAGES, "expected %d events of messages, got %d", 2 * MESSAGES, profile.messages);
    expect(profile.flowlet_bytes == (uint64_t)2 * MESSAGES * SIZE, "expected flowlets of %d bytes in all, got %llu",
           2 * MESSAGES * SIZE, (unsigned long long)profile.flowlet_bytes);
    expect(profile.flowlets >= 2 * MESSAGES * 5, "expected each message in flowlets of 64 KiB, got %d",
           profile.flowlets);
  }
  const char* fault = profiler_fault();
  expect(!fault, "expected right calls of the profiler, but %s", fault);
  region_release(end, pair.send, &from);
  region_release(end, pair.recv, &to);
  close_pair(end, &pair);
}

const struct rule startup_rules[] = {
    {.name = "symbols",
     .sentence = "the vtables of all versions are exported, with all calls that NCCL makes without a check",
     .alone = symbols,
     .bare = true},
    {.name = "devices",
     .sentence = "after init there is a device, and getProperties(0) answers at once",
     .alone = devices},
    {.name = "properties", .sentence = "properties are complete, plausible and unique per device", .alone = properties},
    {.name = "wrong-device", .sentence = "a device out of range is an error", .alone = wrong_device},
    {.name = "virtual-device",
     .sentence = "makeVDevice, where it exists, refuses what cannot be fused and makes no device of it",
     .alone = virtual_device,
     .since = 9},
    {.name = "no-device",
     .sentence = "init without a usable device fails with one warning that names the remedy",
     .alone = no_device,
     .bare = true,
     .environment = {{"PARALET_IFNAME", "doesnotexist"}}},
    {.name = "banner",
     .sentence = "one INFO line describes the plugin, however many communicators there are",
     .alone = banner},
    {.name = "optional-calls", .sentence = "optional calls that exist succeed", .alone = optional_calls},
    {.name = "traffic-class",
     .sentence = "the communicator's traffic class is that of its packets, and of no other communicator's",
     .alone = traffic_classes,
     .bare = true,
     .since = 10},
    {.name = "profiler-events",
     .sentence = "a profiler that wants events of the network gets them for every message, and all of them end",
     .alone = profiled,
     .since = 10,
     .environment = {{"PARALET_FLOWLET_BYTES", "64KiB"}}},
    {0}};
