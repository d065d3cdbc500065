// SPDX-License-Identifier: Apache-2.0
#include "verbs/verbs_backend.hpp"

#include "base/errors.hpp"
#include "base/interfaces.hpp"

#if __has_include(<infiniband/verbs.h>)

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <unordered_map>

#include "base/file_descriptor.hpp"
#include "base/random.hpp"
#include "verbs/verbs_library.hpp"
#include "wire/flow_label.hpp"
#include "wire/wire.hpp"

namespace paralet {
namespace {

constexpr std::uint32_t kSendDepth = 128;      // work requests of a QP that the NIC holds; more wait here
constexpr std::uint32_t kReceiveDepth = 8192;  // of the shared receive queue
constexpr int kCompletions = 65536;            // of the completion queue, where the NIC can
constexpr std::uint32_t kSmallReceive = 512;   // bytes up to which a receive goes by way of memory registered once
constexpr std::uint64_t kSignalEvery = 16;     // requests; the last of a batch is signalled too
constexpr std::uint64_t kFenceSlot = kReceiveDepth;  // of small buffers: what fences read goes there
constexpr std::uint32_t kInlineBytes = 64;           // go with the request itself
constexpr std::size_t kPollBatch = 32;
constexpr std::uint64_t kReceiveMark = 1ULL << 63;  // in a wr_id: a receive
constexpr std::uint64_t kPageMask = 4095;
constexpr std::uint8_t kHopLimit = 64;
constexpr std::uint8_t kMinRnrTimer = 12;  // 0.64 ms, as in protocol.md
constexpr std::uint8_t kRetryForEver = 7;
constexpr std::uint8_t kMaxRetries = 6;  // to the kernel's rxe 7 means for ever
constexpr int kReadyToReceive = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr Nanos kFresh = 200 * kMillisecond;
constexpr Nanos kLookForEvents = 10 * kMillisecond;  // of the device, while nobody sleeps
constexpr int kRemoteAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
constexpr int kDeviceAccess = kRemoteAccess | IBV_ACCESS_REMOTE_READ;  // read by fences: QPs of peers do not let them

[[noreturn]] void fail(const std::string& what, int error) { throw DeviceError(what + ": " + std::strerror(error)); }

std::uint32_t bytes_of(ibv_mtu mtu) { return 128U << static_cast<unsigned>(mtu); }
ibv_mtu mtu_of(std::uint32_t bytes) { return static_cast<ibv_mtu>(std::countr_zero(bytes) - 7); }

/// The IPv4 address in a GID, host byte order; nothing when it is not a mapped one.
std::optional<std::uint32_t> ipv4_of(const ibv_gid& gid) {
  static constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  if (!std::equal(kMapped.begin(), kMapped.end(), std::begin(gid.raw))) return std::nullopt;
  std::uint32_t address = 0;
  std::memcpy(&address, &gid.raw[12], sizeof address);
  return ntohl(address);
}

ibv_gid gid_of(std::uint32_t address) {
  ibv_gid gid{};
  gid.raw[10] = gid.raw[11] = 0xFF;
  const std::uint32_t wire = htonl(address);
  std::memcpy(&gid.raw[12], &wire, sizeof wire);
  return gid;
}

struct Retries {
  std::uint8_t timeout_code = 1;  ///< 4.096 us * 2^code
  std::uint8_t count = 1;
};

/// The shortest timeout that is long enough, and as many retries as fill the time that a peer may be silent.
Retries retries(const VerbsOptions& options) {
  const Nanos timeout = options.min_timeout.value_or(options.retry_time / (kMaxRetries + 1));
  Retries out;
  const auto length = [&] { return static_cast<Nanos>(4096) << out.timeout_code; };
  while (out.timeout_code < 31 && length() < timeout) ++out.timeout_code;
  out.count = static_cast<std::uint8_t>(std::clamp<Nanos>(options.retry_time / length() - 1, 1, kMaxRetries));
  return out;
}

/// Whether the driver chooses source ports by itself, whatever the flow label: bnxt_re, and rxe before Linux 5.18.
bool ignores_flow_label(const std::string& device) {
  const std::filesystem::path place = "/sys/class/infiniband/" + device;
  std::error_code error;
  if (std::filesystem::exists(place / "parent", error)) {  // software: it names its network interface
    utsname system{};
    int major = 0;
    int minor = 0;
    return ::uname(&system) == 0 && std::sscanf(system.release, "%d.%d", &major, &minor) == 2 &&
           std::pair(major, minor) < std::pair(5, 18);
  }
  const auto driver = std::filesystem::read_symlink(place / "device" / "driver", error);
  return !error && driver.filename().native().starts_with("bnxt");
}

struct Place {
  std::string device;
  ContextHandle context;
  std::uint8_t port = 0;
  std::uint32_t gid_index = 0;
  ibv_gid gid{};
};

std::vector<ibv_gid_entry> gid_table(ibv_context* context) {
  std::vector<ibv_gid_entry> entries(1024);
  const ssize_t count =
      VerbsLibrary::load().query_gid_table(context, entries.data(), entries.size(), 0, sizeof(ibv_gid_entry));
  entries.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  std::erase_if(entries, [](const ibv_gid_entry& e) { return e.gid_type != IBV_GID_TYPE_ROCE_V2; });
  return entries;
}

/// Calls `visit(name, context handle)` for every device that opens, until it returns true.
template <typename Visit>
void for_devices(Visit visit) {
  const VerbsLibrary& verbs = VerbsLibrary::load();
  int count = 0;
  const auto free_list = [&](ibv_device** list) { verbs.free_device_list(list); };
  const std::unique_ptr<ibv_device*, decltype(free_list)> list(verbs.get_device_list(&count), free_list);
  for (int i = 0; i < count; ++i) {
    ibv_device* device = list.get()[i];
    ContextHandle context(verbs.open_device(device));
    if (context && visit(verbs.get_device_name(device), std::move(context))) return;
  }
}

Place find_place(const VerbsOptions& options) {
  Place place;
  for_devices([&](const std::string& name, ContextHandle context) {
    if (!options.device.empty() && options.device != name) return false;
    const std::vector<ibv_gid_entry> gids = gid_table(context.get());
    const auto ours = std::ranges::find_if(
        gids, [&](const ibv_gid_entry& entry) { return ipv4_of(entry.gid) == std::optional(options.address); });
    if (ours == gids.end()) return false;
    const std::uint32_t index = options.gid_index.value_or(ours->gid_index);
    const auto chosen = std::ranges::find_if(
        gids, [&](const ibv_gid_entry& entry) { return entry.port_num == ours->port_num && entry.gid_index == index; });
    if (chosen == gids.end() || index > UINT8_MAX) {
      throw DeviceError("GID index " + std::to_string(index) + " of " + name + ", which has " +
                        format_ipv4(options.address) + ", is no RoCEv2 GID: `paralet doctor` lists them");
    }
    place = {name, std::move(context), static_cast<std::uint8_t>(ours->port_num), index, chosen->gid};
    return true;
  });
  if (!place.context) {
    throw DeviceError(
        "no RDMA device " + (options.device.empty() ? "" : options.device + " ") + "has a RoCEv2 GID for " +
        format_ipv4(options.address) +
        " (list them with: paralet doctor; add SoftRoCE with: rdma link add NAME type rxe netdev NETDEV)");
  }
  return place;
}

Status status_of(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return Status::kSuccess;
    case IBV_WC_REM_ACCESS_ERR:
      return Status::kRemoteAccess;
    case IBV_WC_REM_INV_REQ_ERR:
      return Status::kRemoteInvalid;
    case IBV_WC_REM_OP_ERR:
      return Status::kRemoteOperation;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return Status::kRetryExceeded;
    case IBV_WC_WR_FLUSH_ERR:
      return Status::kFlushed;
    case IBV_WC_FATAL_ERR:
      return Status::kDeviceLost;
    default:
      return Status::kLocal;
  }
}

class Verbs final : public Backend {
 public:
  explicit Verbs(const VerbsOptions& options);

  [[nodiscard]] std::uint16_t udp_port() const override { return wire::kRocePort; }
  [[nodiscard]] std::uint32_t max_path_mtu() const override { return max_path_mtu_; }
  std::uint32_t register_memory(std::byte* base, std::uint64_t length) override;
  std::uint32_t register_source(const std::byte* base, std::uint64_t length) override;
  std::uint32_t register_device_memory(std::byte* base, std::uint64_t length, std::optional<DmaBuf> dmabuf) override;
  void post_fence(std::uint32_t rkey, std::uint64_t offset, std::uint64_t cookie) override;
  void deregister_memory(std::uint32_t rkey) override;
  [[nodiscard]] std::uint64_t remote_address(std::uint32_t rkey) const override {
    const auto found = regions_.find(rkey);
    return found != regions_.end() ? found->second.iova : 0;
  }

  QpIdentity create_qp() override;
  [[nodiscard]] Ece ece(std::uint32_t qpn) const override;
  [[nodiscard]] std::uint16_t max_ip_id() const override { return UINT16_MAX; }
  bool connect_qp(std::uint32_t qpn, const RemoteQp& remote, std::uint16_t source_port) override;
  bool set_port(std::uint32_t qpn, std::uint16_t source_port) override;
  [[nodiscard]] PortMethod port_method() const override { return port_method_; }
  void fail_qp(std::uint32_t qpn) override;
  void destroy_qp(std::uint32_t qpn) override;
  void post(std::uint32_t qpn, const WorkRequest& request) override;
  void post_receive(const ReceiveBuffer& buffer) override;
  [[nodiscard]] PathEstimate estimate(std::uint32_t qpn) const override;
  [[nodiscard]] QpStatistics statistics(std::uint32_t qpn) const override;
  [[nodiscard]] Discards discards() const override { return {}; }  // the NIC's own affair

  [[nodiscard]] bool wants_work(Nanos) const override { return true; }
  bool progress(Nanos now, std::vector<Completion>& completions) override;
  bool flush(Nanos now) override;
  void settle(Nanos now) override;
  [[nodiscard]] Nanos deadline(Nanos now) const override;
  [[nodiscard]] int event_fd() const override { return epoll_.get(); }

 private:
  struct Region {
    MrHandle mr;
    const std::byte* base = nullptr;  ///< of another device's memory just a name
    std::uint64_t length = 0;
    std::uint64_t iova = 0;
    bool on_device = false;  ///< no processor may touch it
  };
  /// What the NIC needs to read or write local memory. `temporary` is registered for this one request.
  struct Local {
    ibv_sge sge{};
    MrHandle temporary;
  };
  struct Posted {
    std::uint64_t cookie = 0;
    std::uint32_t length = 0;
    Nanos at = 0;
    MrHandle temporary;
  };
  struct Qp {
    QpIdentity identity;
    RemoteQp remote;
    std::uint16_t port = 0;
    bool failed = false;
    bool active = false;              ///< listed in active_
    std::deque<WorkRequest> waiting;  ///< posted and not yet handed to the NIC
    std::deque<Posted> posted;        ///< handed to the NIC, oldest first
    std::uint64_t oldest = 0;         ///< sequence number, and wr_id, of the oldest in `posted`
    std::size_t flushing = 0;         ///< of a failed one: requests whose completions nobody waits for
    QpCounters counters;
    Nanos latency = 0;  ///< smoothed, of a request from hand-over to completion
    Nanos min_latency = 0;
    Nanos sampled_at = 0;  ///< when `latency` was measured last
    QpHandle handle;       ///< last, so that it goes first: the NIC lets go of memory before its registrations end
  };
  struct Receive {
    ReceiveBuffer buffer;
    MrHandle temporary;
  };

  std::uint32_t keep(MrHandle mr, const std::byte* base, std::uint64_t length, std::uint64_t iova);
  [[nodiscard]] bool on_device(const WorkRequest& request) const;
  QpIdentity create_qp(int access);
  void connect_to_itself(Qp& qp);
  void start_sending(Qp& qp);
  void complete(const Qp& qp, std::uint64_t cookie, std::uint32_t length, Status status);
  [[nodiscard]] Local local(const WorkRequest& request) const;
  [[nodiscard]] Local temporary(const std::byte* data, std::uint32_t length, int access) const;
  [[nodiscard]] ibv_qp_attr address_vector(const RemoteQp& remote, std::uint16_t source_port) const;
  bool hand_over(Qp& qp, Nanos now);
  void hand_over_receives();
  bool poll(Nanos now);
  void on_sent(Qp& qp, const ibv_wc& wc, Nanos now);
  void on_received(const ibv_wc& wc);
  void complete_oldest(Qp& qp, Status status, Nanos now);
  void fail_all_requests(Qp& qp, Status status);
  void lose(Qp& qp, Status why);
  void on_async_events();
  [[nodiscard]] std::byte* small_buffer(std::uint64_t slot) { return small_.data() + slot * kSmallReceive; }

  const VerbsLibrary& verbs_;
  VerbsOptions options_;
  Place place_;
  std::uint32_t max_path_mtu_ = 0;
  std::uint32_t max_inline_ = 0;
  PortMethod port_method_ = PortMethod::kFlowLabel;
  PdHandle pd_;
  ChannelHandle channel_;
  CqHandle cq_;
  SrqHandle srq_;
  std::size_t most_posted_ = 0;  ///< requests of all QPs that the completion queue has room for beside receives
  std::size_t posted_ = 0;       ///< requests that the NIC holds
  FileDescriptor epoll_;
  bool armed_ = false;  ///< the completion queue will say when something comes
  std::map<std::uint32_t, Region> regions_;
  std::byte nothing_{};  ///< stands for memory of no bytes, which cannot be registered
  std::vector<std::byte> small_;
  MrHandle small_mr_;
  std::vector<Receive> receives_;             ///< by slot
  std::vector<std::uint64_t> free_receives_;  ///< slots
  std::deque<ReceiveBuffer> waiting_receives_;
  std::unordered_map<std::uint32_t, std::unique_ptr<Qp>> qps_;
  std::uint32_t fence_qpn_ = 0;  ///< of the QP that reads our own memory, 0: not needed so far
  std::vector<Qp*> active_;      ///< with requests that the NIC does not have yet
  std::vector<Completion> completions_;
  Nanos next_look_ = 0;  ///< for events of the device
  Nanos polled_at_ = 0;
};

// -- opening -----------------------------------------------------------------------------------------------------

void make_nonblocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

Verbs::Verbs(const VerbsOptions& options)
    : verbs_(VerbsLibrary::load()),
      options_(options),
      place_(find_place(options)),
      small_((std::size_t{kReceiveDepth} + 1) * kSmallReceive),
      receives_(kReceiveDepth) {
  ibv_context* context = place_.context.get();
  ibv_port_attr port{};
  if (const int error = verbs_.query_port(context, place_.port, &port); error != 0)
    fail("cannot query the port", error);
  if (port.state != IBV_PORT_ACTIVE) throw DeviceError("the RDMA port of " + format_ipv4(options.address) + " is down");
  max_path_mtu_ = bytes_of(port.active_mtu);
  if (ignores_flow_label(place_.device)) port_method_ = PortMethod::kNone;
  ibv_device_attr device{};
  if (const int error = verbs_.query_device(context, &device); error != 0) fail("cannot query the device", error);

  pd_.reset(verbs_.alloc_pd(context));
  if (!pd_) fail("cannot allocate a protection domain", errno);
  channel_.reset(verbs_.create_comp_channel(context));
  if (!channel_) fail("cannot create a completion channel", errno);
  cq_.reset(verbs_.create_cq(context, std::min(device.max_cqe, kCompletions), nullptr, channel_.get(), 0));
  if (!cq_) fail("cannot create a completion queue", errno);
  ibv_srq_init_attr srq{};
  srq.attr.max_wr = std::min(kReceiveDepth, static_cast<std::uint32_t>(device.max_srq_wr));
  srq.attr.max_sge = 1;
  srq_.reset(verbs_.create_srq(pd_.get(), &srq));
  if (!srq_) fail("cannot create a shared receive queue", errno);
  // Room for a completion of everything that the NIC holds: a queue that overflows is lost, and all QPs with it.
  const auto completions = static_cast<std::uint32_t>(cq_->cqe);
  const std::uint32_t receives = std::min({kReceiveDepth, srq.attr.max_wr, completions / 2});
  most_posted_ = completions - receives;
  for (std::uint64_t slot = receives; slot-- > 0;) free_receives_.push_back(slot);
  small_mr_.reset(verbs_.reg_mr_iova(pd_.get(), small_.data(), small_.size(),
                                     reinterpret_cast<std::uint64_t>(small_.data()), IBV_ACCESS_LOCAL_WRITE));
  if (!small_mr_) fail("cannot register memory (is `ulimit -l` large enough?)", errno);

  make_nonblocking(context->async_fd);
  make_nonblocking(channel_->fd);
  epoll_ = FileDescriptor(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) fail("cannot watch the device", errno);
  for (const int fd : {context->async_fd, channel_->fd}) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) fail("cannot watch the device", errno);
  }
}

// -- memory ------------------------------------------------------------------------------------------------------

std::uint32_t Verbs::keep(MrHandle mr, const std::byte* base, std::uint64_t length, std::uint64_t iova) {
  const std::uint32_t rkey = mr->rkey;
  regions_.insert_or_assign(rkey, Region{.mr = std::move(mr), .base = base, .length = length, .iova = iova});
  return rkey;
}

std::uint32_t Verbs::register_memory(std::byte* base, std::uint64_t length) {
  // The kernel wants the address that peers use to agree with the memory's place in its page; more of it they need not
  // know. Nothing to register is still a region: a message may be empty.
  std::byte* place = length == 0 ? &nothing_ : base;
  const std::uint64_t iova = reinterpret_cast<std::uint64_t>(place) & kPageMask;
  MrHandle mr(verbs_.reg_mr_iova(pd_.get(), place, std::max<std::uint64_t>(length, 1), iova,
                                 length == 0 ? IBV_ACCESS_LOCAL_WRITE : kRemoteAccess));
  if (!mr) fail("cannot register " + std::to_string(length) + " bytes of memory (is `ulimit -l` large enough?)", errno);
  return keep(std::move(mr), base, length, iova);
}

std::uint32_t Verbs::register_source(const std::byte* base, std::uint64_t length) {
  if (length <= kInlineBytes) return 0;
  const auto iova = reinterpret_cast<std::uint64_t>(base);
  // Without any access but to read it here: what is sent may be read-only.
  MrHandle mr(verbs_.reg_mr_iova(pd_.get(), const_cast<std::byte*>(base), length, iova, 0));
  if (!mr) fail("cannot register " + std::to_string(length) + " bytes of memory (is `ulimit -l` large enough?)", errno);
  return keep(std::move(mr), base, length, iova);
}

std::uint32_t Verbs::register_device_memory(std::byte* base, std::uint64_t length, std::optional<DmaBuf> dmabuf) {
  if (dmabuf && verbs_.reg_dmabuf_mr == nullptr)
    throw DeviceError("this libibverbs cannot register a dma-buf (rdma-core 34 can)");
  const std::uint64_t iova = (dmabuf ? dmabuf->offset : reinterpret_cast<std::uint64_t>(base)) & kPageMask;
  MrHandle mr(dmabuf ? verbs_.reg_dmabuf_mr(pd_.get(), dmabuf->offset, length, iova, dmabuf->fd, kDeviceAccess)
                     : verbs_.reg_mr_iova(pd_.get(), base, length, iova, kDeviceAccess));
  if (!mr && dmabuf) fail(place_.device + " cannot register a dma-buf", errno);
  if (!mr) fail(place_.device + " cannot register another device's memory (is nvidia_peermem loaded?)", errno);
  const std::uint32_t rkey = keep(std::move(mr), base, length, iova);
  regions_.at(rkey).on_device = true;
  return rkey;
}

/// A READ from the region by way of the NIC: on their way to the memory it does not overtake the writes that the NIC
/// has made before (PCI Express base specification, 2.4.1).
void Verbs::post_fence(std::uint32_t rkey, std::uint64_t offset, std::uint64_t cookie) {
  if (const auto found = qps_.find(fence_qpn_); fence_qpn_ == 0 || found->second->failed) {
    if (fence_qpn_ != 0) destroy_qp(fence_qpn_);
    fence_qpn_ = 0;
    const std::uint32_t qpn = create_qp(IBV_ACCESS_REMOTE_READ).qpn;
    try {
      connect_to_itself(*qps_.at(qpn));
    } catch (const DeviceError&) {
      destroy_qp(qpn);
      throw;
    }
    fence_qpn_ = qpn;
  }
  post(fence_qpn_, {.kind = WorkKind::kRead,
                    .cookie = cookie,
                    .length = 1,
                    .remote_address = remote_address(rkey) + offset,
                    .rkey = rkey});
}

void Verbs::deregister_memory(std::uint32_t rkey) { regions_.erase(rkey); }

/// Where the NIC finds what is to be sent.
Verbs::Local Verbs::local(const WorkRequest& request) const {
  if (const auto found = regions_.find(request.memory); request.memory != 0 && found != regions_.end()) {
    const Region& region = found->second;
    const auto offset = static_cast<std::uint64_t>(request.data - region.base);
    if (offset <= region.length && request.length <= region.length - offset) {
      return {.sge = {.addr = region.iova + offset, .length = request.length, .lkey = region.mr->lkey},
              .temporary = {}};
    }
  }
  return temporary(request.data, request.length, 0);
}

bool Verbs::on_device(const WorkRequest& request) const {
  const auto found = regions_.find(request.memory);
  return request.memory != 0 && found != regions_.end() && found->second.on_device;
}

/// Registers memory for one request.
Verbs::Local Verbs::temporary(const std::byte* data, std::uint32_t length, int access) const {
  const auto address = reinterpret_cast<std::uint64_t>(data);
  MrHandle mr(verbs_.reg_mr_iova(pd_.get(), const_cast<std::byte*>(data), length, address, access));
  const std::uint32_t lkey = mr ? mr->lkey : 0;  // the NIC will refuse 0, and the request fails as any other
  return {.sge = {.addr = address, .length = length, .lkey = lkey}, .temporary = std::move(mr)};
}

// -- queue pairs -------------------------------------------------------------------------------------------------

QpIdentity Verbs::create_qp() { return create_qp(IBV_ACCESS_REMOTE_WRITE); }

QpIdentity Verbs::create_qp(int access) {
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq_.get();
  init.srq = srq_.get();
  init.cap.max_send_wr = kSendDepth;
  init.cap.max_send_sge = 1;
  init.cap.max_inline_data = kInlineBytes;
  init.qp_type = IBV_QPT_RC;
  auto qp = std::make_unique<Qp>();
  qp->handle.reset(verbs_.create_qp(pd_.get(), &init));
  if (!qp->handle) fail("cannot create a queue pair", errno);
  max_inline_ = init.cap.max_inline_data;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = place_.port;
  attributes.qp_access_flags = static_cast<unsigned>(access);
  if (const int error = verbs_.modify_qp(qp->handle.get(), &attributes,
                                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
      error != 0) {
    fail("cannot initialize a queue pair", error);
  }
  qp->identity = {.qpn = qp->handle->qp_num, .first_psn = random_u32() & wire::kPsnMask};
  const QpIdentity identity = qp->identity;
  qps_.emplace(identity.qpn, std::move(qp));
  return identity;
}

Ece Verbs::ece(std::uint32_t qpn) const {
  ibv_ece ece{};
  if (verbs_.query_ece == nullptr || verbs_.query_ece(qps_.at(qpn)->handle.get(), &ece) != 0) return {};
  return {.vendor_id = ece.vendor_id, .options = ece.options, .comp_mask = ece.comp_mask};
}

void Verbs::destroy_qp(std::uint32_t qpn) {
  const auto found = qps_.find(qpn);
  if (found == qps_.end()) return;
  std::erase(active_, found->second.get());
  const std::size_t held = found->second->posted.size() + found->second->flushing;
  qps_.erase(found);
  poll(now());  // some drivers leave its completions in the queue: they take up room, and its number may come again
  posted_ -= held;
}

ibv_qp_attr Verbs::address_vector(const RemoteQp& remote, std::uint16_t source_port) const {
  ibv_qp_attr attributes{};
  attributes.ah_attr.is_global = 1;
  attributes.ah_attr.grh.dgid = gid_of(remote.address);
  attributes.ah_attr.grh.flow_label = flow_label_of_port(source_port);
  attributes.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(place_.gid_index);
  attributes.ah_attr.grh.hop_limit = kHopLimit;
  attributes.ah_attr.grh.traffic_class = options_.traffic_class;
  attributes.ah_attr.sl = options_.service_level;
  attributes.ah_attr.port_num = place_.port;
  return attributes;
}

bool Verbs::connect_qp(std::uint32_t qpn, const RemoteQp& remote, std::uint16_t source_port) {
  Qp& qp = *qps_.at(qpn);
  if (source_port < kFirstRocePort) return false;  // no flow label gives such a port
  if (remote.udp_port != wire::kRocePort) {
    throw DeviceError(format_ipv4(remote.address) + " receives on UDP port " + std::to_string(remote.udp_port) +
                      ", an RDMA device sends to 4791 only: give each process over there an address of its own");
  }
  if (remote.ece.vendor_id != 0 && verbs_.set_ece != nullptr) {
    ibv_ece ece{.vendor_id = remote.ece.vendor_id, .options = remote.ece.options, .comp_mask = remote.ece.comp_mask};
    verbs_.set_ece(qp.handle.get(), &ece);  // where it does not help, both sides do without
  }
  ibv_qp_attr ready = address_vector(remote, source_port);
  ready.qp_state = IBV_QPS_RTR;
  ready.path_mtu = mtu_of(remote.path_mtu);
  ready.dest_qp_num = remote.qpn;
  ready.rq_psn = remote.first_psn;
  ready.min_rnr_timer = kMinRnrTimer;
  const int error = verbs_.modify_qp(qp.handle.get(), &ready, kReadyToReceive);
  if (error != 0) fail("no path to " + format_ipv4(remote.address), error);
  start_sending(qp);
  qp.remote = remote;
  qp.port = port_method_ == PortMethod::kNone ? 0 : source_port;
  if (verbs_.mlx5_modify_qp_udp_sport != nullptr &&
      verbs_.mlx5_modify_qp_udp_sport(qp.handle.get(), source_port) == 0) {
    port_method_ = PortMethod::kModifyQp;  // exact, where the label is a request
    qp.port = source_port;
  }
  return true;
}

void Verbs::start_sending(Qp& qp) {
  ibv_qp_attr send{};
  send.qp_state = IBV_QPS_RTS;
  send.max_rd_atomic = 1;
  const Retries patience = retries(options_);
  send.timeout = patience.timeout_code;
  send.retry_cnt = patience.count;
  send.rnr_retry = kRetryForEver;
  send.sq_psn = qp.identity.first_psn;
  const int error = verbs_.modify_qp(
      qp.handle.get(), &send,
      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  if (error != 0) fail("cannot start a queue pair", error);
}

void Verbs::connect_to_itself(Qp& qp) {
  ibv_qp_attr ready = address_vector(RemoteQp{}, kFirstRocePort);
  ready.ah_attr.grh.dgid = place_.gid;
  ready.qp_state = IBV_QPS_RTR;
  ready.path_mtu = mtu_of(max_path_mtu_);
  ready.dest_qp_num = qp.identity.qpn;
  ready.rq_psn = qp.identity.first_psn;
  ready.min_rnr_timer = kMinRnrTimer;
  ready.max_dest_rd_atomic = 1;
  const int error = verbs_.modify_qp(qp.handle.get(), &ready, kReadyToReceive);
  if (error != 0) fail("no path from " + place_.device + " to itself", error);
  qp.remote.path_mtu = max_path_mtu_;
  start_sending(qp);
}

bool Verbs::set_port(std::uint32_t qpn, std::uint16_t source_port) {
  Qp& qp = *qps_.at(qpn);
  if (qp.port == source_port) return true;
  // A flow label is fixed while a queue pair sends: without the vendor's call the lane keeps its port.
  if (port_method_ != PortMethod::kModifyQp || source_port < kFirstRocePort || qp.failed) return false;
  if (verbs_.mlx5_modify_qp_udp_sport(qp.handle.get(), source_port) != 0) return false;
  qp.port = source_port;
  return true;
}

void Verbs::fail_qp(std::uint32_t qpn) {
  Qp& qp = *qps_.at(qpn);
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  verbs_.modify_qp(qp.handle.get(), &attributes, IBV_QP_STATE);
  // What the NIC holds comes back flushed; until then it may read that memory.
  if (qp.posted.empty()) fail_all_requests(qp, Status::kFlushed);
}

// -- sending -----------------------------------------------------------------------------------------------------

void Verbs::post(std::uint32_t qpn, const WorkRequest& request) {
  Qp& qp = *qps_.at(qpn);
  if (qp.failed) {
    complete(qp, request.cookie, 0, Status::kFlushed);
    return;
  }
  qp.waiting.push_back(request);
  if (qp.active) return;
  qp.active = true;
  active_.push_back(&qp);
}

/// One chain of work requests, so that the NIC is told once. Its last is signalled.
bool Verbs::hand_over(Qp& qp, Nanos now) {
  std::array<ibv_send_wr, kPollBatch> requests{};
  std::array<Local, kPollBatch> memory;
  const std::size_t room = std::min(kSendDepth - qp.posted.size(), most_posted_ - posted_);
  const std::size_t count = std::min({room, qp.waiting.size(), requests.size()});
  if (count == 0) return false;
  for (std::size_t i = 0; i < count; ++i) {
    const WorkRequest& from = qp.waiting[i];
    ibv_send_wr& to = requests[i];
    const bool read = from.kind == WorkKind::kRead;
    const bool inlined = !read && from.length <= std::min(kInlineBytes, max_inline_) && !on_device(from);
    if (read) {
      memory[i].sge = {.addr = reinterpret_cast<std::uint64_t>(small_buffer(kFenceSlot)),
                       .length = from.length,
                       .lkey = small_mr_->lkey};
    } else if (inlined) {
      memory[i].sge = {.addr = reinterpret_cast<std::uint64_t>(from.data), .length = from.length, .lkey = 0};
    } else {
      memory[i] = local(from);
    }
    const std::uint64_t sequence = qp.oldest + qp.posted.size() + i;
    to.wr_id = sequence;
    to.next = i + 1 < count ? &requests[i + 1] : nullptr;
    to.sg_list = &memory[i].sge;
    to.num_sge = from.length == 0 ? 0 : 1;
    if (i + 1 == count || sequence % kSignalEvery == 0) to.send_flags |= IBV_SEND_SIGNALED;
    if (inlined && from.length != 0) to.send_flags |= IBV_SEND_INLINE;
    to.wr.rdma = {.remote_addr = from.remote_address, .rkey = from.rkey};
    switch (from.kind) {
      case WorkKind::kWrite:
        to.opcode = IBV_WR_RDMA_WRITE;
        break;
      case WorkKind::kWriteImm:
        to.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        to.imm_data = htonl(from.imm);
        break;
      case WorkKind::kSend:
        to.opcode = IBV_WR_SEND;
        break;
      case WorkKind::kRead:
        to.opcode = IBV_WR_RDMA_READ;
        break;
    }
  }
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(qp.handle.get(), requests.data(), &refused);
  const std::size_t taken =
      error == 0 || refused == nullptr ? count : static_cast<std::size_t>(refused - requests.data());
  for (std::size_t i = 0; i < taken; ++i) {
    const std::uint32_t length = qp.waiting.front().length;
    qp.posted.push_back({.cookie = qp.waiting.front().cookie,
                         .length = length,
                         .at = now,
                         .temporary = std::move(memory[i].temporary)});
    qp.counters.tx_bytes += length;
    qp.counters.tx_packets += length == 0 ? 1 : (length + qp.remote.path_mtu - 1) / qp.remote.path_mtu;
    qp.waiting.pop_front();
  }
  posted_ += taken;
  if (error != 0) lose(qp, Status::kDeviceLost);  // there was room: the queue pair or the device is broken
  return true;
}

bool Verbs::flush(Nanos now) {
  bool any = false;
  for (Qp* qp : active_) {
    while (!qp->failed && hand_over(*qp, now)) any = true;
  }
  std::erase_if(active_, [](Qp* qp) {
    qp->active = !qp->waiting.empty();
    return !qp->active;
  });
  return any;
}

// -- receiving ---------------------------------------------------------------------------------------------------

void Verbs::post_receive(const ReceiveBuffer& buffer) {
  waiting_receives_.push_back(buffer);
  hand_over_receives();
}

void Verbs::hand_over_receives() {
  while (!waiting_receives_.empty() && !free_receives_.empty()) {
    const ReceiveBuffer& buffer = waiting_receives_.front();
    const std::uint64_t slot = free_receives_.back();
    Local memory;
    if (buffer.length <= kSmallReceive) {
      memory.sge = {.addr = reinterpret_cast<std::uint64_t>(small_buffer(slot)),
                    .length = buffer.length,
                    .lkey = small_mr_->lkey};
    } else {
      memory = temporary(buffer.data, buffer.length, IBV_ACCESS_LOCAL_WRITE);
    }
    ibv_recv_wr request{};
    request.wr_id = kReceiveMark | slot;
    request.sg_list = &memory.sge;
    request.num_sge = buffer.length == 0 ? 0 : 1;
    ibv_recv_wr* refused = nullptr;
    if (ibv_post_srq_recv(srq_.get(), &request, &refused) != 0) return;  // full after all: when one comes back
    receives_[slot] = {buffer, std::move(memory.temporary)};
    free_receives_.pop_back();
    waiting_receives_.pop_front();
  }
}

void Verbs::on_received(const ibv_wc& wc) {
  const std::uint64_t slot = wc.wr_id & ~kReceiveMark;
  Receive receive = std::exchange(receives_[slot], {});
  if (wc.status != IBV_WC_SUCCESS) {  // the message that took it will not come: it serves the next one
    free_receives_.push_back(slot);
    waiting_receives_.push_back(receive.buffer);
    return;
  }
  const bool with_imm = wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
  if (!with_imm && receive.buffer.length <= kSmallReceive && wc.byte_len != 0) {
    std::memcpy(receive.buffer.data, small_buffer(slot), wc.byte_len);
  }
  free_receives_.push_back(slot);
  if (const auto found = qps_.find(wc.qp_num); found != qps_.end()) {
    QpCounters& counters = found->second->counters;
    counters.rx_bytes += wc.byte_len;
    ++counters.rx_packets;
  }
  completions_.push_back({.kind = with_imm ? Completion::Kind::kReceivedWriteImm : Completion::Kind::kReceivedSend,
                          .status = Status::kSuccess,
                          .qpn = wc.qp_num,
                          .cookie = receive.buffer.cookie,
                          .byte_length = wc.byte_len,
                          .imm = with_imm ? ntohl(wc.imm_data) : 0});
}

// -- completions -------------------------------------------------------------------------------------------------

void Verbs::complete(const Qp& qp, std::uint64_t cookie, std::uint32_t length, Status status) {
  const bool fence = qp.identity.qpn == fence_qpn_;
  completions_.push_back({.kind = fence ? Completion::Kind::kFenced : Completion::Kind::kSent,
                          .status = status,
                          .qpn = qp.identity.qpn,
                          .cookie = cookie,
                          .byte_length = length});
}

void Verbs::complete_oldest(Qp& qp, Status status, Nanos now) {
  const Posted& posted = qp.posted.front();
  complete(qp, posted.cookie, posted.length, status);
  if (status == Status::kSuccess) {
    const Nanos latency = std::max<Nanos>(1, now - posted.at);
    qp.latency = qp.latency == 0 ? latency : qp.latency + (latency - qp.latency) / 8;
    qp.sampled_at = now;
    qp.min_latency = qp.min_latency == 0 ? latency : std::min(qp.min_latency, latency);
  }
  qp.posted.pop_front();
  ++qp.oldest;
}

void Verbs::fail_all_requests(Qp& qp, Status status) {
  qp.failed = true;
  qp.flushing = qp.posted.size();
  while (!qp.posted.empty()) {
    complete_oldest(qp, status, 0);
    status = Status::kFlushed;
  }
  for (const WorkRequest& request : qp.waiting) {
    complete(qp, request.cookie, 0, Status::kFlushed);
  }
  qp.waiting.clear();
}

/// A completion speaks for all requests before it too: they were not signalled.
void Verbs::on_sent(Qp& qp, const ibv_wc& wc, Nanos now) {
  if (wc.wr_id < qp.oldest || wc.wr_id - qp.oldest >= qp.posted.size()) return;  // failed with an earlier one
  posted_ -= wc.wr_id - qp.oldest;
  while (qp.oldest < wc.wr_id) complete_oldest(qp, Status::kSuccess, now);
  if (wc.status == IBV_WC_SUCCESS) {
    --posted_;
    complete_oldest(qp, Status::kSuccess, now);
  } else {
    fail_all_requests(qp, status_of(wc.status));
  }
}

bool Verbs::poll(Nanos now) {
  std::array<ibv_wc, kPollBatch> entries;
  bool any = false;
  polled_at_ = now;
  for (;;) {
    const int count = ibv_poll_cq(cq_.get(), static_cast<int>(entries.size()), entries.data());
    for (int i = 0; i < count; ++i) {
      const ibv_wc& wc = entries[static_cast<std::size_t>(i)];
      if ((wc.wr_id & kReceiveMark) != 0) {
        on_received(wc);
      } else if (const auto found = qps_.find(wc.qp_num); found != qps_.end()) {
        on_sent(*found->second, wc, now);
      }
    }
    any = any || count > 0;
    if (count < static_cast<int>(entries.size())) break;
  }
  if (!waiting_receives_.empty()) hand_over_receives();
  return any;
}

/// The QP is of no use any more, and not by a request's fault: whoever uses it must hear of it even with nothing
/// posted.
void Verbs::lose(Qp& qp, Status why) {
  if (qp.failed) return;
  completions_.push_back({.kind = Completion::Kind::kQpFailed, .status = why, .qpn = qp.identity.qpn});
  if (why == Status::kDeviceLost) {
    fail_all_requests(qp, Status::kFlushed);  // nothing more will come from it
  } else {
    fail_qp(qp.identity.qpn);
  }
}

void Verbs::on_async_events() {
  ibv_async_event event{};
  while (verbs_.get_async_event(place_.context.get(), &event) == 0) {
    std::vector<Qp*> affected;
    Status why = Status::kDeviceLost;
    switch (event.event_type) {
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
        if (const auto found = qps_.find(event.element.qp->qp_num); found != qps_.end()) {
          affected.push_back(found->second.get());
        }
        break;
      case IBV_EVENT_PORT_ERR:
        if (event.element.port_num != place_.port) break;
        why = Status::kPortDown;
        [[fallthrough]];
      case IBV_EVENT_DEVICE_FATAL:
      case IBV_EVENT_CQ_ERR:
      case IBV_EVENT_SRQ_ERR:
        for (const auto& [qpn, qp] : qps_) affected.push_back(qp.get());
        break;
      default:
        break;
    }
    verbs_.ack_async_event(&event);
    for (Qp* qp : affected) lose(*qp, why);
  }
}

bool Verbs::progress(Nanos now, std::vector<Completion>& completions) {
  if (armed_) {  // only then may there be one
    ibv_cq* cq = nullptr;
    void* unused = nullptr;
    if (verbs_.get_cq_event(channel_.get(), &cq, &unused) == 0) {
      verbs_.ack_cq_events(cq, 1);
      armed_ = false;
    }
  }
  if (armed_ || now >= next_look_) {
    on_async_events();
    next_look_ = now + kLookForEvents;
  }
  bool any = poll(now);
  if (!completions_.empty()) {
    completions.insert(completions.end(), completions_.begin(), completions_.end());
    completions_.clear();
    any = true;
  }
  return any;
}

void Verbs::settle(Nanos now) {
  if (!armed_) armed_ = ibv_req_notify_cq(cq_.get(), 0) == 0;
  poll(now);  // what came before the queue was armed makes no event
}

Nanos Verbs::deadline(Nanos now) const {
  if (!completions_.empty()) return now;
  const bool ready = posted_ < most_posted_ && std::ranges::any_of(active_, [](const Qp* qp) {
                       return !qp->waiting.empty() && qp->posted.size() < kSendDepth;
                     });
  return ready ? now : kNever;
}

PathEstimate Verbs::estimate(std::uint32_t qpn) const {
  const Qp& qp = *qps_.at(qpn);
  // What was slow a while ago may be good by now: an idle lane without news counts as unknown and is tried again.
  const bool unknown = qp.posted.empty() && polled_at_ - qp.sampled_at > kFresh;
  return {.smoothed_rtt = unknown ? 0 : qp.latency,
          .fresh_until = qp.sampled_at + kFresh,
          .window = kSendDepth,
          .hungry = false};
}

QpStatistics Verbs::statistics(std::uint32_t qpn) const {
  const Qp& qp = *qps_.at(qpn);
  return {.counters = qp.counters,
          .port = qp.port,
          .smoothed_rtt = qp.latency,
          .min_rtt = qp.min_latency,
          .window = kSendDepth,
          .all_acknowledged = qp.posted.empty() && qp.waiting.empty()};
}

/// Whether dma-bufs can be registered, by NCCL's own test: a driver that takes them finds fault with this descriptor.
bool takes_dmabuf(ibv_context* context) {
  const VerbsLibrary& verbs = VerbsLibrary::load();
  if (verbs.reg_dmabuf_mr == nullptr) return false;
  const PdHandle pd(verbs.alloc_pd(context));
  if (!pd) return false;
  errno = 0;
  const MrHandle mr(verbs.reg_dmabuf_mr(pd.get(), 0, 0, 0, -1, 0));
  return errno != EOPNOTSUPP && errno != EPROTONOSUPPORT;
}

}  // namespace

std::vector<VerbsPort> verbs_ports() {
  std::vector<VerbsPort> out;
  for_devices([&](const std::string& name, const ContextHandle& context) {
    const bool dmabuf = takes_dmabuf(context.get());
    for (const ibv_gid_entry& entry : gid_table(context.get())) {
      const auto address = ipv4_of(entry.gid);
      ibv_port_attr port{};
      if (!address ||
          VerbsLibrary::load().query_port(context.get(), static_cast<std::uint8_t>(entry.port_num), &port) != 0) {
        continue;
      }
      out.push_back({.device = name,
                     .port = entry.port_num,
                     .active = port.state == IBV_PORT_ACTIVE,
                     .path_mtu = bytes_of(port.active_mtu),
                     .gid_index = entry.gid_index,
                     .address = *address,
                     .dmabuf = dmabuf});
    }
    return false;
  });
  return out;
}

std::unique_ptr<Backend> open_verbs(const VerbsOptions& options) { return std::make_unique<Verbs>(options); }

}  // namespace paralet

#else

namespace paralet {
namespace {
constexpr const char* kNotBuilt =
    "the verbs back end was not built, for its header was missing: install libibverbs-dev and build again";
}
std::vector<VerbsPort> verbs_ports() { throw DeviceError(kNotBuilt); }
std::unique_ptr<Backend> open_verbs(const VerbsOptions&) { throw DeviceError(kNotBuilt); }
}  // namespace paralet

#endif
