// SPDX-License-Identifier: Apache-2.0
#include "verbs/completion_queue.hpp"

#include <fcntl.h>

#include <cerrno>

#include "verbs/port.hpp"

namespace paralet::verbs {

CompletionQueue::CompletionQueue(ibv_context* context, int entries)
    : channel_(VerbsLibrary::load().create_comp_channel(context)) {
  if (!channel_) fail("cannot create a completion channel", errno);
  queue_.reset(VerbsLibrary::load().create_cq(context, entries, nullptr, channel_.get(), 0));
  if (!queue_) fail("cannot create a completion queue", errno);
  ::fcntl(fd(), F_SETFL, ::fcntl(fd(), F_GETFL) | O_NONBLOCK);
}

void CompletionQueue::take_event() {
  if (!armed_) return;
  ibv_cq* queue = nullptr;
  void* unused = nullptr;
  if (VerbsLibrary::load().get_cq_event(channel_.get(), &queue, &unused) != 0) return;
  VerbsLibrary::load().ack_cq_events(queue, 1);
  armed_ = false;
}

}  // namespace paralet::verbs
