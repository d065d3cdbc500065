/* SPDX-License-Identifier: Apache-2.0
 *
 * Which network is taken, and the differences between the versions of its interface.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stub.h"

const ncclNet_v12_t* net_common(const struct net* net) { return net->table; }

const char* net_name(const struct net* net) { return net_common(net)->name; }

static ncclResult_t profiler(void** handle, int type, void* parent, int64_t id, void* data) {
  (void)handle, (void)type, (void)parent, (void)id, (void)data;
  return ncclSuccess;
}

static ncclResult_t net_init(struct net* net, uint64_t comm_id) {
  ncclNetCommConfig_v12_t config = {.trafficClass = NCCL_NET_TRAFFIC_CLASS_UNDEF};
  switch (net->version) {
    case 8:
      return ((const ncclNet_v8_t*)net->table)->init(stub_log);
    case 9:
      return ((const ncclNet_v9_t*)net->table)->init(stub_log);
    case 10:
      return ((const ncclNet_v10_t*)net->table)->init(stub_log, profiler);
    case 11:
      return ((const ncclNet_v11_t*)net->table)->init(&net->context, comm_id, &config, stub_log, profiler);
    default:
      return ((const ncclNet_v12_t*)net->table)->init(&net->context, comm_id, &config, stub_log, profiler);
  }
}

/* The properties of device 0 that are looked at here: may host memory be registered? */
static ncclResult_t net_pointer_support(const struct net* net, int* support) {
  if (net->version == 8) {
    ncclNetProperties_v8_t properties;
    CHECK(((const ncclNet_v8_t*)net->table)->getProperties(0, &properties));
    *support = properties.ptrSupport;
  } else {
    ncclNetProperties_v12_t properties; /* v9 to v12 agree up to vProps, and v12 is the longest */
    CHECK(net_common(net)->getProperties(0, &properties));
    *support = properties.ptrSupport;
  }
  return ncclSuccess;
}

ncclResult_t net_listen(struct net* net, void* handle, void** listen_comm) {
  return net->version >= 11 ? net_common(net)->listen(net->context, 0, handle, listen_comm)
                            : ((const ncclNet_v8_t*)net->table)->listen(0, handle, listen_comm);
}

ncclResult_t net_connect(struct net* net, void* handle, void** send_comm) {
  ncclNetDeviceHandle_v12_t* device = NULL;
  ncclNetCommConfig_v10_t config = {.trafficClass = NCCL_NET_TRAFFIC_CLASS_UNDEF};
  if (net->version >= 11) return net_common(net)->connect(net->context, 0, handle, send_comm, &device);
  if (net->version == 10) return ((const ncclNet_v10_t*)net->table)->connect(0, &config, handle, send_comm, &device);
  return ((const ncclNet_v8_t*)net->table)->connect(0, handle, send_comm, &device);
}

ncclResult_t net_isend(struct net* net, void* comm, void* data, size_t size, int tag, void* memory, void** request) {
  if (net->version == 8) {
    return ((const ncclNet_v8_t*)net->table)->isend(comm, data, (int)size, tag, memory, request);
  }
  if (net->version == 9) return ((const ncclNet_v9_t*)net->table)->isend(comm, data, size, tag, memory, request);
  return net_common(net)->isend(comm, data, size, tag, memory, NULL, request);
}

ncclResult_t net_irecv(struct net* net, void* comm, void* data, size_t size, int tag, void* memory, void** request) {
  if (net->version == 8) {
    int bytes = (int)size;
    return ((const ncclNet_v8_t*)net->table)->irecv(comm, 1, &data, &bytes, &tag, &memory, request);
  }
  if (net->version == 9) {
    return ((const ncclNet_v9_t*)net->table)->irecv(comm, 1, &data, &size, &tag, &memory, request);
  }
  void* profile = NULL;
  return net_common(net)->irecv(comm, 1, &data, &size, &tag, &memory, &profile, request);
}

/* As given; else, where it is neither a path nor the name of a library, libnccl-net-NAME.so. */
static void* open_library(const char* name) {
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library != NULL) return library;
  INFO(NCCL_INIT | NCCL_NET, "NET/Plugin: %s", dlerror());
  size_t length = strlen(name);
  bool is_library = strncmp(name, "lib", 3) == 0 && length > 3 && strcmp(name + length - 3, ".so") == 0;
  if (strchr(name, '/') != NULL || is_library) return NULL;
  char path[PATH_MAX];
  snprintf(path, sizeof path, "libnccl-net-%s.so", name);
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) INFO(NCCL_INIT | NCCL_NET, "NET/Plugin: Could not find: %s %s", name, path);
  return library;
}

static bool load(struct net* net, const char* name, int newest) {
  *net = (struct net){.library = open_library(name)};
  if (net->library == NULL) return false;
  for (net->version = newest; net->version >= 8; --net->version) {
    char symbol[32];
    snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", net->version);
    net->table = dlsym(net->library, symbol);
    if (net->table != NULL) {
      INFO(NCCL_INIT | NCCL_NET, "NET/Plugin: Loaded net plugin %s (v%d)", net_name(net), net->version);
      INFO(NCCL_INIT | NCCL_NET, "Successfully loaded external network plugin %s", name);
      return true;
    }
  }
  INFO(NCCL_INIT | NCCL_NET, "External network plugin %s is unsupported", name);
  dlclose(net->library);
  return false;
}

/* Takes the network if it has the wanted name, comes up, and has a device for host memory. */
static bool take(struct net* net, const char* wanted, uint64_t comm_id) {
  int devices = 0, support = 0;
  bool named = wanted == NULL || strcasecmp(wanted, net_name(net)) == 0;
  if (named) {
    if (net_init(net, comm_id) == ncclSuccess) {
      if (net_common(net)->devices(&devices) == ncclSuccess && devices > 0 &&
          net_pointer_support(net, &support) == ncclSuccess && (support & NCCL_PTR_HOST) != 0) {
        INFO(NCCL_INIT | NCCL_NET, "Initialized NET plugin %s", net_name(net));
        INFO(NCCL_INIT | NCCL_NET, "Assigned NET plugin %s to comm", net_name(net));
        return true;
      }
      if (net->version >= 11) net_common(net)->finalize(net->context);
    }
    INFO(NCCL_INIT | NCCL_NET, "Failed to initialize NET plugin %s", net_name(net));
  }
  if (net->library != NULL) dlclose(net->library);
  return false;
}

ncclResult_t net_open(struct net* net, int newest, uint64_t comm_id) {
  const char* wanted = getenv("NCCL_NET");
  const char* plugins = getenv("NCCL_NET_PLUGIN");
  if (plugins != NULL) INFO(NCCL_ENV | NCCL_NET, "NCCL_NET_PLUGIN set by environment to %s", plugins);
  char* list = strdup(plugins == NULL ? "libnccl-net.so" : strcasecmp(plugins, "none") == 0 ? "" : plugins);
  if (list == NULL) return ncclSystemError;
  char* rest = NULL;
  for (char* name = strtok_r(list, ",", &rest); name != NULL; name = strtok_r(NULL, ",", &rest)) {
    if (load(net, name, newest) && take(net, wanted, comm_id)) {
      free(list);
      return ncclSuccess;
    }
  }
  free(list);
  *net = (struct net){.version = 12, .table = &stub_socket_net};
  if (take(net, wanted, comm_id)) return ncclSuccess;
  WARN("Failed to initialize any NET plugin");
  return ncclInvalidUsage;
}

ncclResult_t net_close(struct net* net) {
  if (net->version >= 11) CHECK(net_common(net)->finalize(net->context));
  if (net->library != NULL) {
    INFO(NCCL_NET, "Unloading plugin");
    dlclose(net->library);
  }
  *net = (struct net){0};
  return ncclSuccess;
}
