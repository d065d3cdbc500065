# SPDX-License-Identifier: Apache-2.0
"""The environment of programs and agents, and the name of a job."""

from pathlib import Path

import pytest

from paralet_pin import library
from paralet_pin.jobs import job_of
from paralet_pin.launch import check_networks, settings, variables


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        ({}, ""),
        ({"PARALET_JOB": "own", "SLURM_JOB_ID": "7"}, "own"),
        ({"SLURM_JOB_NAME": "bert large", "SLURM_JOB_ID": "7"}, "bert_large-7"),
        ({"SLURM_JOB_ID": "7"}, "7"),
        ({"TORCHELASTIC_RUN_ID": "none"}, ""),
        ({"TORCHELASTIC_RUN_ID": "run1"}, "run1"),
        ({"HOSTNAME": "here"}, ""),
        ({"HOSTNAME": "bert-0", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "bert-0"),
        ({"JOB_NAME": "x" * 80}, "x" * 64),
        ({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}, "10.0.0.1-29500"),
    ],
)
def test_the_name_of_a_job(environment: dict[str, str], job: str) -> None:
    assert job_of(environment) == job


def test_the_library_comes_before_others_that_are_preloaded() -> None:
    assert variables({"LD_PRELOAD": "a.so b.so", "X": "y"}, Path("/run/agent")) == {
        "LD_PRELOAD": f"{library()}:a.so:b.so",
        "X": "y",
        "PARALET_PIN_AGENT": "/run/agent",
    }


def test_the_agent_has_a_policy_and_preloads_nothing() -> None:
    assert settings({"LD_PRELOAD": "a.so"}) == {"PARALET_POLICY": "controller", "PARALET_JOB": ""}
    assert settings({"PARALET_PORTS": "10.0.0.1=50000"})["PARALET_POLICY"] == "pinned"
    assert settings({"PARALET_POLICY": "ecmp"})["PARALET_POLICY"] == "ecmp"


@pytest.mark.parametrize("wrong", ["", "10.0.0.0", "10.0.0.1/8", "x/8", "10.0.0.0/8,", ",".join(["10.0.0.0/8"] * 17)])
def test_lists_that_are_no_networks(wrong: str) -> None:
    check_networks("10.0.0.0/8,fd00::/8")
    with pytest.raises(ValueError, match=r"\w"):
        check_networks(wrong)
