# SPDX-License-Identifier: Apache-2.0
"""The name of the job that a process belongs to, as schedulers and launchers tell it."""

from __future__ import annotations

from collections.abc import Mapping

_MOST = 64
_NAMES: tuple[tuple[str, ...], ...] = (
    ("PARALET_JOB",),
    ("SLURM_JOB_NAME", "SLURM_JOB_ID"),  # the name alone is often "bash"
    ("SLURM_JOB_ID",),
    ("JOB_NAME",),  # Kubernetes by the downward API: the name of the Job
    ("TORCHELASTIC_RUN_ID",),
    ("OMPI_MCA_ess_base_jobid",),
    ("MASTER_ADDR", "MASTER_PORT"),  # of torch: the ranks of a job meet there
    ("HOSTNAME",),
)


def job_of(environment: Mapping[str, str]) -> str:
    """The job's name, as the path service takes it: up to 64 printable characters of ASCII without blanks.

    Empty where nothing tells it. A pod's HOSTNAME is its name, so it counts only in Kubernetes.
    """
    for names in _NAMES:
        if names == ("HOSTNAME",) and "KUBERNETES_SERVICE_HOST" not in environment:
            continue
        values = [environment.get(name, "") for name in names]
        if all(values) and values != ["none"]:  # torchrun's run id by default
            return _printable("-".join(values))
    return ""


def _printable(name: str) -> str:
    return "".join(letter if "!" <= letter <= "~" else "_" for letter in name)[:_MOST]
