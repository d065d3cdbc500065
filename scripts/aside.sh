#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# aside.sh COMMAND...: runs COMMAND on the processors while nothing else wants them. For what only computes, beside tests
# that wait. PARALET_ASIDE names a file for the number of COMMAND's process group, by which it can be stopped for a while.
set -euo pipefail

# In a session of its own: kernels with autogroups share processors out between sessions first, by nice values that
# sessions have for it (sched(7)).
# It ends with whoever waits for it.
# shellcheck disable=SC2016 # what the inner shell expands
exec setsid --wait setpriv --pdeathsig TERM bash -c '
    [[ -z "${PARALET_ASIDE:-}" ]] || echo $$ >"$PARALET_ASIDE"
    echo 19 2>/dev/null >/proc/self/autogroup || true
    if chrt --idle 0 true 2>/dev/null; then exec chrt --idle 0 "$@"; fi
    exec nice -n 19 "$@" # some containers refuse other classes' aside "$@"
