/* SPDX-License-Identifier: Apache-2.0 */
/* Compiles or does not: the header's assertions are the test. */
#include "paralet_nccl_net.h"
#include "paralet_profiler.h"

extern const ncclNet_v12_t* paralet_unused;
