#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# aside.sh COMMAND...: runs COMMAND on the processors while nothing else wants them. For what only computes, beside tests
# that wait.
set -euo pipefail

# In a session of its own: kernels with autogroups share processors out between sessions first, by nice values that
# sessions have for it (sched(7)).
exec setsid --wait bash -c '
    echo 19 2>/dev/null >/proc/self/autogroup || true
    exec chrt --idle 0 "$@"' aside "$@"
