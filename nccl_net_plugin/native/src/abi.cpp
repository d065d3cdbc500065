// SPDX-License-Identifier: Apache-2.0
#include "abi.hpp"

#include <algorithm>
#include <array>
#include <new>
#include <stdexcept>
#include <string>

#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "comm.hpp"
#include "core.hpp"
#include "log.hpp"
#include "plugin_error.hpp"
#include "profiler.hpp"

namespace paralet::plugin::abi {
namespace {

/// Logs the exception that is being handled and returns the result for NCCL.
ncclResult_t report(const char* call) noexcept {
  const auto say = [call](const char* what, ncclResult_t result) noexcept {
    try {
      log_warning(std::string(call) + ": " + what);
    } catch (...) {  // NOLINT(bugprone-empty-catch): out of memory; the result still tells NCCL
    }
    return result;
  };
  try {
    throw;
  } catch (const PluginError& error) {
    return say(error.what(), error.result);
  } catch (const DeviceError& error) {
    return say(error.what(), ncclSystemError);
  } catch (const TransportError& error) {
    return say(error.what(), ncclRemoteError);
  } catch (const std::invalid_argument& error) {
    return say(error.what(), ncclInvalidArgument);
  } catch (const std::bad_alloc&) {
    return say("out of memory", ncclSystemError);
  } catch (const std::exception& error) {
    return say(error.what(), ncclInternalError);
  } catch (...) {
    return say("unknown error", ncclInternalError);
  }
}

template <typename Body>
ncclResult_t guarded(const char* call, Body body) noexcept {
  try {
    return body();
  } catch (...) {
    return report(call);
  }
}

template <typename... Pointers>
void require(const Pointers*... pointers) {
  const bool missing = (... || (pointers == nullptr));
  if (missing) throw PluginError(ncclInvalidArgument, "a required pointer argument is NULL");
}

/// Throws DeviceError in a forked child of the process that opened the comm.
DataComm& data_comm(void* comm) {
  require(comm);
  auto& out = *static_cast<DataComm*>(comm);
  out.device()->check_owner();
  return out;
}

HandleBytes handle_bytes(void* handle) {
  require(handle);
  return HandleBytes(static_cast<std::byte*>(handle), NCCL_NET_HANDLE_MAXSIZE);
}

/// Does nothing in a forked child of the process that opened the comm.
template <typename Comm>
ncclResult_t close(const char* call, void* comm) noexcept {
  return guarded(call, [&] {
    require(comm);
    auto* closing = static_cast<Comm*>(comm);
    if (!closing->device()->inherited()) delete closing;  // NOLINT(cppcoreguidelines-owning-memory): NCCL's pointer
    return ncclSuccess;
  });
}

/// Converts a size, which is an int in version 8. Throws PluginError when it is negative.
template <typename Size>
std::size_t unsigned_size(Size size) {
  if constexpr (std::is_signed_v<Size>) {
    if (size < 0)
      throw PluginError(ncclInvalidArgument, "a message size must not be negative, got " + std::to_string(size));
  }
  return static_cast<std::size_t>(size);
}

}  // namespace

ncclResult_t init(void** context, const ncclNetCommConfig_v12_t* config, ncclDebugLogger_t logger,
                  ncclProfilerCallback_t profiler) noexcept {
  return guarded("init", [&] {
    set_profiler(profiler);
    if (context != nullptr) {
      const int traffic_class = config != nullptr ? config->trafficClass : NCCL_NET_TRAFFIC_CLASS_UNDEF;
      *context = Core::instance().open_context(logger, traffic_class);
    } else {
      Core::instance().open_forever(logger);
    }
    return ncclSuccess;
  });
}

ncclResult_t set_net_attr(void* context, const ncclNetAttr_v12_t* attributes) noexcept {
  return guarded("setNetAttr", [&] {
    require(attributes);
    Core::instance().expect_peers(context, attributes->sendCommAttr.maxConcurrentPeers);
    return ncclSuccess;
  });
}

ncclResult_t finalize(void* context) noexcept {
  return guarded("finalize", [&] {
    Core::instance().close_context(context);
    return ncclSuccess;
  });
}

ncclResult_t devices(int* count) noexcept {
  return guarded("devices", [&] {
    require(count);
    *count = 0;
    *count = Core::instance().devices();
    return ncclSuccess;
  });
}

ncclResult_t properties(int device, ncclNetProperties_v12_t* out) noexcept {
  return guarded("getProperties", [&] {
    const DeviceProperties known = Core::instance().properties(device);
    *out = {};
    // NCCL only reads these strings; its struct has no const.
    out->name = const_cast<char*>(known.name);         // NOLINT(cppcoreguidelines-pro-type-const-cast)
    out->pciPath = const_cast<char*>(known.pci_path);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    out->guid = known.guid;
    out->ptrSupport = known.pointers;
    out->regIsGlobal = 1;  // rkeys are the device's
    out->forceFlush = 0;
    out->speed = known.speed_mbps;
    out->port = known.port;
    out->latency = 0;  // NCCL's own estimate
    out->maxComms = 65536;
    out->maxRecvs = static_cast<int>(kMaxReceives);
    out->netDeviceType = NCCL_NET_DEVICE_HOST;
    out->netDeviceVersion = NCCL_NET_DEVICE_INVALID_VERSION;
    out->vProps.ndevs = std::max(1, static_cast<int>(known.members.size()));
    out->vProps.devs[0] = device;
    std::ranges::copy(known.members, out->vProps.devs);
    out->maxP2pBytes = kMaxMessageBytes;
    out->maxCollBytes = kMaxMessageBytes;
    out->maxMultiRequestSize = 1;
    out->railId = known.place.rail;
    out->planeId = known.place.plane;
    return ncclSuccess;
  });
}

ncclResult_t make_fused(const int* members, int count, int* out) noexcept {
  return guarded("makeVDevice", [&] {
    require(members, out);
    *out = Core::instance().make_fused(std::span(members, static_cast<std::size_t>(std::max(count, 0))));
    return ncclSuccess;
  });
}

// -- connections -------------------------------------------------------------------------------------------------

ncclResult_t listen(void* context, int device, void* handle, void** comm) noexcept {
  return guarded("listen", [&] {
    require(comm);
    *comm = nullptr;
    const HandleBytes out = handle_bytes(handle);
    auto listener = Core::instance().listen(context, device);
    std::ranges::copy(listener->handle(), out.begin());
    *comm = listener.release();
    return ncclSuccess;
  });
}

ncclResult_t connect(void* context, int device, const ncclNetCommConfig_v12_t* config, void* handle,
                     void** comm) noexcept {
  return guarded("connect", [&] {
    require(comm);
    *comm = nullptr;
    const int traffic_class = config != nullptr ? config->trafficClass : NCCL_NET_TRAFFIC_CLASS_UNDEF;
    *comm = Core::instance().connect(context, device, handle_bytes(handle), traffic_class).release();
    return ncclSuccess;
  });
}

ncclResult_t accept(void* listen_comm, void** comm) noexcept {
  return guarded("accept", [&] {
    require(listen_comm, comm);
    *comm = nullptr;
    auto& listener = *static_cast<ListenComm*>(listen_comm);
    listener.device()->check_owner();
    *comm = Core::accept(listener).release();
    return ncclSuccess;
  });
}

ncclResult_t close_send(void* comm) noexcept { return close<DataComm>("closeSend", comm); }

ncclResult_t close_recv(void* comm) noexcept { return close<DataComm>("closeRecv", comm); }

ncclResult_t close_listen(void* comm) noexcept { return close<ListenComm>("closeListen", comm); }

// -- memory ------------------------------------------------------------------------------------------------------

namespace {

/// Throws PluginError when the device cannot register memory of this kind, an NCCL_PTR_* bit.
void check_memory_kind(const DataComm& comm, int kind) {
  if (kind == NCCL_PTR_HOST || (Core::instance().pointers(*comm.device()) & kind) != 0) return;
  const char* what = kind == NCCL_PTR_DMABUF ? "DMA buffers"
                     : kind == NCCL_PTR_CUDA ? "GPU memory"
                                             : "this type of memory";
  throw PluginError(ncclInvalidArgument, std::string("this device (back end ") +
                                             to_string(comm.device()->options().backend) + ") cannot register " + what +
                                             ": see ptrSupport in its properties");
}

void* keep(const DataComm& owner, std::byte* base, std::size_t size, std::uint32_t rkey, bool on_device) {
  return Core::instance().memories().add(
      {.device = owner.device(), .base = base, .length = size, .rkey = rkey, .on_device = on_device});
}

/// The region of an mhandle, nullptr for NULL. Throws PluginError for a handle that names none.
const Memory* memory_of(const void* handle) {
  if (handle == nullptr) return nullptr;
  const Memory* memory = Core::instance().memories().find(handle);
  if (memory == nullptr) {
    throw PluginError(ncclInvalidArgument, "this memory handle was deregistered, or is not one of this plugin's");
  }
  return memory;
}

/// A comm that sends or receives. Throws PluginError when it does the other.
DataComm& comm_for(DataComm::Direction direction, void* comm) {
  DataComm& out = data_comm(comm);
  if (out.direction() != direction) {
    throw PluginError(ncclInvalidArgument, direction == DataComm::Direction::kSend
                                               ? "this comm receives: pass one that connect has returned"
                                               : "this comm sends: pass one that accept has returned");
  }
  return out;
}

}  // namespace

ncclResult_t reg_mr(void* comm, void* data, std::size_t size, int type, void** memory) noexcept {
  return guarded("regMr", [&] {
    require(memory);
    *memory = nullptr;
    const DataComm& owner = data_comm(comm);
    check_memory_kind(owner, type);
    if (size > 0) require(data);
    auto* base = static_cast<std::byte*>(data);
    Device& device = *owner.device();
    const bool host = type == NCCL_PTR_HOST;
    const std::uint32_t rkey =
        host ? device.register_memory(base, size) : device.register_device_memory(base, size, std::nullopt);
    *memory = keep(owner, base, size, rkey, !host);
    return ncclSuccess;
  });
}

ncclResult_t reg_mr_dmabuf(void* comm, void* data, std::size_t size, int type, std::uint64_t offset, int fd,
                           void** memory) noexcept {
  static_cast<void>(type);  // the kernel knows the memory's owner
  return guarded("regMrDmaBuf", [&] {
    require(memory, data);
    *memory = nullptr;
    const DataComm& owner = data_comm(comm);
    check_memory_kind(owner, NCCL_PTR_DMABUF);
    auto* base = static_cast<std::byte*>(data);
    const std::uint32_t rkey = owner.device()->register_device_memory(base, size, DmaBuf{.fd = fd, .offset = offset});
    *memory = keep(owner, base, size, rkey, true);
    return ncclSuccess;
  });
}

ncclResult_t dereg_mr(void* /*comm*/, void* memory) noexcept {
  return guarded("deregMr", [&] {
    if (memory == nullptr) return ncclSuccess;
    static_cast<void>(memory_of(memory));
    const auto registered = Core::instance().memories().remove(memory);
    if (!registered) return ncclSuccess;  // another thread was faster
    const auto deregister = [](Device& device, std::uint32_t rkey) {
      for (const IpAddress& peer : device.deregister_memory(rkey)) {
        log_warning("deregMr: a connection to " + format_address(peer) +
                    " had unfinished messages in this memory and was closed");
      }
    };
    deregister(*registered->device, registered->rkey);
    for (const auto& [device, rkey] : registered->shared) deregister(*device, rkey);
    return ncclSuccess;
  });
}

// -- messages ----------------------------------------------------------------------------------------------------

ncclResult_t isend(void* comm, void* data, std::size_t size, int tag, void* memory, void* profiled,
                   void** request) noexcept {
  return guarded("isend", [&] {
    require(request);
    *request = nullptr;
    DataComm& sender = comm_for(DataComm::Direction::kSend, comm);
    const std::array transfers = {
        Transfer{.data = data, .bytes = size, .tag = tag, .memory = memory_of(memory), .profiled = profiled}};
    Operation* operation = nullptr;
    const ncclResult_t result = sender.post(transfers, &operation);
    *request = operation;
    return result;
  });
}

template <typename Size>
ncclResult_t irecv(void* comm, int n, void** data, const Size* sizes, const int* tags, void** memories, void** profiled,
                   void** request) noexcept {
  return guarded("irecv", [&] {
    require(data, sizes, request);
    // A preset of NCCL_NET_OPTIONAL_RECV_COMPLETION permits to drop the completion; it is always delivered.
    *request = nullptr;
    if (n < 1 || n > static_cast<int>(kMaxReceives)) {
      throw PluginError(ncclInvalidArgument, "a group must have 1 to " + std::to_string(kMaxReceives) +
                                                 " receives, got " + std::to_string(n));
    }
    DataComm& receiver = comm_for(DataComm::Direction::kReceive, comm);
    std::array<Transfer, kMaxReceives> transfers;
    const auto count = static_cast<std::size_t>(n);
    for (std::size_t i = 0; i < count; ++i) {
      transfers[i] = {.data = data[i],
                      .bytes = unsigned_size(sizes[i]),
                      .tag = tags != nullptr ? tags[i] : 0,
                      .memory = memories != nullptr ? memory_of(memories[i]) : nullptr,
                      .profiled = profiled != nullptr ? profiled[i] : nullptr};
    }
    Operation* operation = nullptr;
    const ncclResult_t result = receiver.post(std::span(transfers).first(count), &operation);
    *request = operation;
    return result;
  });
}
template ncclResult_t irecv<int>(void*, int, void**, const int*, const int*, void**, void**, void**) noexcept;
template ncclResult_t irecv<std::size_t>(void*, int, void**, const std::size_t*, const int*, void**, void**,
                                         void**) noexcept;

ncclResult_t iflush(void* comm, int n, void** data, int* sizes, void** memories, void** request) noexcept {
  return guarded("iflush", [&] {
    require(request);
    *request = nullptr;
    DataComm& receiver = data_comm(comm);
    // Data in host memory is visible once the completion is. Data for a GPU may still be on its way over PCIe. All
    // messages of a group came through one NIC, so a flush of the last one covers the others.
    for (int i = n; i-- > 0;) {
      const Memory* memory = memories != nullptr ? memory_of(memories[i]) : nullptr;
      if (memory == nullptr || !memory->on_device || sizes[i] == 0) continue;
      Operation* operation = nullptr;
      const ncclResult_t result = receiver.fence(*memory, data[i], &operation);
      *request = operation;
      return result;
    }
    return ncclSuccess;
  });
}

ncclResult_t test(void* request, int* done, int* sizes) noexcept {
  return guarded("test", [&] {
    require(request, done);
    *done = 0;
    auto& operation = *static_cast<Operation*>(request);
    if (operation.count == 0)
      throw PluginError(ncclInvalidArgument, "test was called on a request that is already done");
    operation.comm->device()->check_owner();
    bool finished = false;
    const std::size_t known = sizes != nullptr ? operation.count : 0;
    const ncclResult_t result = operation.comm->test(operation, &finished, std::span(sizes, known));
    *done = finished ? 1 : 0;
    return result;
  });
}

}  // namespace paralet::plugin::abi
