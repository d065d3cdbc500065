/* SPDX-License-Identifier: Apache-2.0
 *
 * What the plugin tells NCCL's profiler plugins: events of type ncclProfileNetPlugin whose netPlugin.id is
 * PARALET_PROFILER_ID and whose netPlugin.data points to a paraletProfilerEvent_v1_t. The data are valid during the
 * call only. NCCL 2.26 and later; plain C11 and C++20.
 */
#ifndef PARALET_PROFILER_H_
#define PARALET_PROFILER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As in NCCL's profiler_net.h, the upper half of an id names the network and the lower half the version of its data. */
#define PARALET_PROFILER_ID ((int64_t)0x504C0001)

enum {
  PARALET_PROFILE_MESSAGE = 1, /* a send, or one receive of a group: from isend or irecv to the test that reports it */
  PARALET_PROFILE_FLOWLET = 2  /* a part of the message on one lane: from its posting to its acknowledgement */
};

/* The plugin reports from isend, irecv and test, on their thread, as NCCL's IB transport does. The start and stop of an
 * event are therefore those of the calls; the times below are those of the engine. */
/* NOLINTNEXTLINE(modernize-use-using): C reads this too */
typedef struct {
  uint8_t type;         /* PARALET_PROFILE_* */
  uint8_t receive;      /* 1: received, 0: sent */
  uint16_t source_port; /* UDP source port of the lane; 0 for receives and messages */
  uint32_t lane;        /* 0 .. m - 1; 0 for messages */
  uint32_t qp;          /* this side's QP number; 0 for messages */
  uint32_t peer;        /* IPv4 address of the peer, host byte order */
  uint64_t bytes;       /* of the flowlet or message */
  int64_t began_ns;     /* CLOCK_MONOTONIC: posted, or arrived */
  int64_t ended_ns;     /* acknowledged, arrived or done; 0 in the start of an event, and where it failed */
} paraletProfilerEvent_v1_t;

#ifdef __cplusplus
}
static_assert(sizeof(paraletProfilerEvent_v1_t) == 40, "the layout is part of the interface");
#else
_Static_assert(sizeof(paraletProfilerEvent_v1_t) == 40, "the layout is part of the interface");
#endif

#endif /* PARALET_PROFILER_H_ */
