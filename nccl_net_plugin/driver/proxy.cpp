// SPDX-License-Identifier: Apache-2.0
#include "proxy.hpp"

#include <cstdlib>
#include <cstring>
#include <new>

namespace paralet::driver {
namespace {

constexpr std::size_t kPage = 4096;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

void Staging::Free::operator()(std::byte* data) const { std::free(data); }

Staging::Staging(Net& net, void* comm, const SlotOptions& options)
    : net_(net), comm_(comm), options_(options), stride_(round_up(options.bytes, kPage)) {
  const std::size_t bytes = stride_ * options.steps;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, bytes)));
  if (!data_) throw std::bad_alloc();
  std::memset(data_.get(), 0, bytes);  // its pages exist before the measurement, as those of pinned memory do
  memory_ = net.register_memory(comm, data_.get(), bytes);
}

Staging::~Staging() { net_.deregister_memory(comm_, memory_); }

SendLink::SendLink(Net& net, void* comm, int tag, const SlotOptions& options)
    : net_(net),
      comm_(comm),
      tag_(tag),
      staging_(std::make_unique<Staging>(net, comm, options)),
      requests_(options.steps),
      sizes_(options.steps) {}

SendLink::~SendLink() {
  staging_.reset();
  net_.close_send(comm_);
}

void SendLink::send(std::size_t bytes) {
  sizes_[filled_ % staging_->steps()] = bytes;
  ++filled_;
  post();
}

void SendLink::post() {
  for (; posted_ < filled_; ++posted_) {
    const std::size_t slot = posted_ % staging_->steps();
    void* data = staging_->slot(posted_).data();
    requests_[slot] = net_.isend(comm_, data, sizes_[slot], tag_, staging_->memory());
    if (requests_[slot] == nullptr) break;
  }
}

bool SendLink::progress() {
  const std::uint64_t before = posted_ + done_;
  post();
  while (done_ < posted_ && net_.test(requests_[done_ % staging_->steps()])) ++done_;
  return posted_ + done_ != before;
}

ReceiveLink::ReceiveLink(Net& net, void* comm, int tag, const SlotOptions& options)
    : net_(net),
      comm_(comm),
      tag_(tag),
      staging_(std::make_unique<Staging>(net, comm, options)),
      requests_(options.steps),
      sizes_(options.steps) {}

ReceiveLink::~ReceiveLink() {
  staging_.reset();
  net_.close_receive(comm_);
}

std::optional<std::span<const std::byte>> ReceiveLink::front() const {
  if (released_ == arrived_) return std::nullopt;
  return staging_->slot(released_).first(sizes_[released_ % staging_->steps()]);
}

bool ReceiveLink::progress() {
  const std::uint64_t before = posted_ + arrived_;
  for (; posted_ < expected_ && posted_ - released_ < staging_->steps(); ++posted_) {
    const std::span<std::byte> slot = staging_->slot(posted_);
    void*& request = requests_[posted_ % staging_->steps()];
    request = net_.irecv(comm_, slot.data(), slot.size(), tag_, staging_->memory());
    if (request == nullptr) break;
  }
  while (arrived_ < posted_) {
    const std::size_t slot = arrived_ % staging_->steps();
    const std::optional<std::size_t> bytes = net_.test(requests_[slot]);
    if (!bytes) break;
    sizes_[slot] = *bytes;
    ++arrived_;
  }
  return posted_ + arrived_ != before;
}

}  // namespace paralet::driver
