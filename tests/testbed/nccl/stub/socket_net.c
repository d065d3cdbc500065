/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages over one TCP connection on loopback, behind NCCL's network interface: the stub's stand-in for NCCL's own
 * Socket transport, and, built as a library of its own with STUB_PLUGIN_NAME, the smallest plugin that can be loaded.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "paralet_nccl_net.h"

#ifdef STUB_PLUGIN_NAME
#define NAME STUB_PLUGIN_NAME
#define TABLE ncclNetPlugin_v12
#else
#define NAME "Socket"
#define TABLE stub_socket_net
extern const ncclNet_v12_t stub_socket_net;
#endif

struct request {
  bool used, done;
  struct comm* comm;
  char* data;
  uint64_t size;  /* to send; room to receive, then what has come */
  uint64_t moved; /* of header and data */
  uint64_t header;
};

/* One end of a connection. `next` is the place of the next request, `oldest` of the oldest that is not done. */
struct comm {
  int fd;
  bool sends, greeted;
  uint64_t secret;
  struct request requests[NCCL_NET_MAX_REQUESTS];
  unsigned oldest, next;
};

struct handle {
  uint64_t secret;
  struct comm* connecting;
  uint16_t port;
};

static ncclResult_t s_init(void** context, uint64_t id, ncclNetCommConfig_v12_t* config, ncclDebugLogger_t log,
                           ncclProfilerCallback_t profiler) {
  (void)context, (void)id, (void)config, (void)log, (void)profiler;
  return ncclSuccess;
}

static ncclResult_t s_devices(int* count) {
  *count = 1;
  return ncclSuccess;
}

static ncclResult_t s_properties(int device, ncclNetProperties_v12_t* properties) {
  (void)device;
  *properties = (ncclNetProperties_v12_t){.name = "lo", .ptrSupport = NCCL_PTR_HOST, .speed = 10000, .port = 1};
  properties->maxComms = 65536;
  properties->maxRecvs = 1;
  properties->vProps.ndevs = 1;
  properties->maxP2pBytes = properties->maxCollBytes = NCCL_MAX_NET_SIZE;
  properties->maxMultiRequestSize = 1;
  properties->railId = properties->planeId = NCCL_NET_ID_UNDEF;
  return ncclSuccess;
}

static int new_socket(void) { return socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }

static struct comm* new_comm(int fd, bool sends, uint64_t secret) {
  int on = 1;
  struct comm* comm = calloc(1, sizeof *comm);
  if (comm == NULL) return NULL;
  if (fd >= 0) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  comm->fd = fd;
  comm->sends = sends;
  comm->secret = secret;
  return comm;
}

static ncclResult_t s_listen(void* context, int device, void* bytes, void** listen_comm) {
  (void)context, (void)device;
  struct handle handle = {0};
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  int fd = new_socket();
  if (fd < 0 || bind(fd, (struct sockaddr*)&address, sizeof address) != 0 || listen(fd, 64) != 0 ||
      getsockname(fd, (struct sockaddr*)&address, &length) != 0 ||
      getrandom(&handle.secret, sizeof handle.secret, 0) != sizeof handle.secret) {
    return ncclSystemError;
  }
  handle.port = address.sin_port;
  memset(bytes, 0, NCCL_NET_HANDLE_MAXSIZE);
  memcpy(bytes, &handle, sizeof handle);
  *listen_comm = new_comm(fd, false, handle.secret);
  return *listen_comm != NULL ? ncclSuccess : ncclSystemError;
}

static bool later(void) { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINPROGRESS || errno == ENOTCONN; }

static ncclResult_t s_connect(void* context, int device, void* bytes, void** send_comm,
                              ncclNetDeviceHandle_v12_t** device_handle) {
  (void)context, (void)device, (void)device_handle;
  struct handle* handle = bytes;
  *send_comm = NULL;
  if (handle->connecting == NULL) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = handle->port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct comm* comm = new_comm(new_socket(), true, handle->secret);
    if (comm == NULL || comm->fd < 0) return ncclSystemError;
    handle->connecting = comm;
    if (connect(comm->fd, (struct sockaddr*)&address, sizeof address) != 0 && !later()) return ncclRemoteError;
  }
  struct comm* comm = handle->connecting;
  ssize_t sent = send(comm->fd, &comm->secret, sizeof comm->secret, MSG_NOSIGNAL);
  if (sent < 0) return later() ? ncclSuccess : ncclRemoteError;
  handle->connecting = NULL;
  *send_comm = comm;
  return sent == sizeof comm->secret ? ncclSuccess : ncclInternalError;
}

static ncclResult_t s_accept(void* listen_comm, void** recv_comm, ncclNetDeviceHandle_v12_t** device_handle) {
  (void)device_handle;
  struct comm* listener = listen_comm;
  *recv_comm = NULL;
  int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) return later() ? ncclSuccess : ncclSystemError;
  *recv_comm = new_comm(fd, false, listener->secret); /* shown with the first message */
  return *recv_comm != NULL ? ncclSuccess : ncclSystemError;
}

static ncclResult_t s_reg_mr(void* comm, void* data, size_t size, int type, void** memory) {
  (void)comm, (void)size;
  *memory = data;
  return type == NCCL_PTR_HOST ? ncclSuccess : ncclInternalError;
}

static ncclResult_t s_dereg_mr(void* comm, void* memory) {
  (void)comm, (void)memory;
  return ncclSuccess;
}

/* One step of a request, as far as the socket lets it: 0 when it does not, -1 when the peer is gone. */
static ssize_t move(struct comm* comm, void* data, size_t size) {
  ssize_t moved = comm->sends ? send(comm->fd, data, size, MSG_NOSIGNAL) : recv(comm->fd, data, size, 0);
  if (moved == 0) return -1;
  return moved < 0 && later() ? 0 : moved;
}

static ncclResult_t progress(struct comm* comm) {
  while (!comm->sends && !comm->greeted) {
    uint64_t secret;
    ssize_t moved = recv(comm->fd, &secret, sizeof secret, MSG_PEEK);
    if (moved < (ssize_t)sizeof secret) return moved > 0 || (moved < 0 && later()) ? ncclSuccess : ncclRemoteError;
    if (recv(comm->fd, &secret, sizeof secret, 0) != sizeof secret || secret != comm->secret) return ncclRemoteError;
    comm->greeted = true;
  }
  while (comm->oldest != comm->next) {
    struct request* request = &comm->requests[comm->oldest % NCCL_NET_MAX_REQUESTS];
    while (request->moved < sizeof request->header) {
      ssize_t moved =
          move(comm, (char*)&request->header + request->moved, sizeof request->header - (size_t)request->moved);
      if (moved <= 0) return moved == 0 ? ncclSuccess : ncclRemoteError;
      request->moved += (uint64_t)moved;
      if (request->moved == sizeof request->header) {
        if (request->header > request->size) return ncclInvalidUsage;
        request->size = request->header;
      }
    }
    while (request->moved - sizeof request->header < request->size) {
      uint64_t done = request->moved - sizeof request->header;
      ssize_t moved = move(comm, request->data + done, (size_t)(request->size - done));
      if (moved <= 0) return moved == 0 ? ncclSuccess : ncclRemoteError;
      request->moved += (uint64_t)moved;
    }
    request->done = true;
    ++comm->oldest;
  }
  return ncclSuccess;
}

static ncclResult_t post(struct comm* comm, void* data, size_t size, void** handle) {
  struct request* request = &comm->requests[comm->next % NCCL_NET_MAX_REQUESTS];
  *handle = NULL;
  if (request->used) return ncclSuccess; /* full: try again */
  *request = (struct request){.used = true, .comm = comm, .data = data, .size = size, .header = size};
  ++comm->next;
  *handle = request;
  return progress(comm);
}

static ncclResult_t s_isend(void* comm, void* data, size_t size, int tag, void* memory, void* profile, void** request) {
  (void)tag, (void)memory, (void)profile;
  return post(comm, data, size, request);
}

static ncclResult_t s_irecv(void* comm, int n, void** data, size_t* sizes, int* tags, void** memory, void** profiles,
                            void** request) {
  (void)tags, (void)memory, (void)profiles;
  return n == 1 ? post(comm, data[0], sizes[0], request) : ncclInvalidUsage;
}

static ncclResult_t s_iflush(void* comm, int n, void** data, int* sizes, void** memory, void** request) {
  (void)comm, (void)n, (void)data, (void)sizes, (void)memory, (void)request;
  return ncclInternalError; /* host memory needs none */
}

static ncclResult_t s_test(void* handle, int* done, int* sizes) {
  struct request* request = handle;
  ncclResult_t result = progress(request->comm);
  *done = request->done;
  if (!request->done) return result;
  if (sizes != NULL) sizes[0] = (int)request->size;
  request->used = false;
  return ncclSuccess;
}

static ncclResult_t s_close(void* comm) {
  close(((struct comm*)comm)->fd);
  free(comm);
  return ncclSuccess;
}

static ncclResult_t s_finalize(void* context) {
  (void)context;
  return ncclSuccess;
}

__attribute__((visibility("default"))) const ncclNet_v12_t TABLE = {
    .name = NAME,
    .init = s_init,
    .devices = s_devices,
    .getProperties = s_properties,
    .listen = s_listen,
    .connect = s_connect,
    .accept = s_accept,
    .regMr = s_reg_mr,
    .deregMr = s_dereg_mr,
    .isend = s_isend,
    .irecv = s_irecv,
    .iflush = s_iflush,
    .test = s_test,
    .closeSend = s_close,
    .closeRecv = s_close,
    .closeListen = s_close,
    .finalize = s_finalize,
};
