# SPDX-License-Identifier: Apache-2.0
"""Ranks that run the driver over the NCCL net plugin: its configuration and its failures."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

import nccl_net_plugin
from hostlib.stats import Messages, Survey
from testbed.errors import TestbedError
from testbed.process_group import ProcessError
from testbed.progress import Steps
from testbed.run import agent_messages as messages
from testbed.run import native_rank
from testbed.run.native_rank import NativeRun, driver_arguments, plugin_environment
from testbed.spec.policies import CongestionControl
from testbed.workloads.nccl import NcclRingAllreduce
from tests.testbed.experiments import experiment, on_loopback
from tests.testbed.live import snapshots
from tests.testbed.run.fake_fabric import HOSTLIB_AGENT, runner_on

WORKLOAD = NcclRingAllreduce(bytes=4000, slices=3)


def device(**changes: object) -> messages.DeviceConfig:
    config = {"address": "127.0.0.1", "lanes": 2, "policy": "ecmp", "seed": 7, "line_rate_bps": 10_000_000, **changes}
    return messages.DeviceConfig.model_validate(config)


def prepare(**changes: object) -> messages.Prepare:
    return messages.Prepare(rank=1, ranks=4, seed=3, device=device(**changes), workload=WORKLOAD)


def test_every_variable_is_a_parameter_of_the_plugin() -> None:
    full = device(
        lanes_per="host",
        policy="pinned",
        ports={"10.0.0.2": [50_000, 50_001], "10.0.0.3": [50_002]},
        segments={"fd00::2": [["fd03::1", "fd03::2"], ["fd03::3"]]},
        path_mtu=4096,
        flowlet_bytes=8192,
        mice_bytes=0,
        congestion_control="fixed_window",
        window_packets=12,
    )
    environment = plugin_environment(full)
    assert environment.keys() <= {parameter.name for parameter in nccl_net_plugin.parameters()}
    assert environment["PARALET_PORTS"] == "10.0.0.2=50000,50001;10.0.0.3=50002"
    assert environment["PARALET_SEGMENTS"] == "fd00::2=fd03::1,fd03::2|fd03::3"
    assert (environment["PARALET_LINE_RATE"], environment["PARALET_MICE_BYTES"]) == ("10000000bit/s", "0")
    assert environment["PARALET_LANES_PER"] == "host"
    assert environment["PARALET_CONGESTION_CONTROL"] == "fixed_window"
    assert environment["PARALET_WINDOW_PACKETS"] == "12"


def test_specs_take_the_engines_laws_of_congestion_control() -> None:
    values = {parameter.name: parameter.values for parameter in nccl_net_plugin.parameters()}
    assert values["PARALET_CONGESTION_CONTROL"] == " or ".join(get_args(CongestionControl))


def test_path_service_variables_are_parameters_of_the_plugin() -> None:
    variables = device(
        policy="controller",
        path_service="169.254.0.1:4792",
        token_file="/run/token",
        job="job1",
        elephant_bytes=65536,
        assign_wait_s=0.0025,
    )
    environment = plugin_environment(variables)
    assert environment.keys() <= {parameter.name for parameter in nccl_net_plugin.parameters()}
    assert environment["PARALET_PATH_SERVICE"] == "169.254.0.1:4792"
    assert environment["PARALET_ASSIGN_WAIT"] == "2500us"


def test_experiments_have_the_back_end_soft_unless_they_name_another() -> None:
    assert plugin_environment(device())["PARALET_BACKEND"] == "soft"
    assert plugin_environment(device(backend="tcp"))["PARALET_BACKEND"] == "tcp"


def test_settings_missing_in_the_spec_get_the_engines_defaults() -> None:
    left_out = {"PARALET_PORTS", "PARALET_SEGMENTS", "PARALET_PATH_MTU", "PARALET_FLOWLET_BYTES", "PARALET_MICE_BYTES"}
    assert not plugin_environment(device()).keys() & left_out


def test_the_driver_gets_the_message_size() -> None:
    words = driver_arguments(prepare(path_mtu=1024), WORKLOAD, Path("plugin.so"))
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert options["--slice-bytes"] == str(4 * 84)  # 1000 floats, 4 chunks, 3 messages each, rounded up
    assert options["--warm-up-bytes"] == "2048"
    assert (options["--rank"], options["--ranks"], options["--transport"]) == ("1", "4", "plugin.so")


def test_counters_are_those_after_the_last_packet_of_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short message counts as sent once the device has copied it."""
    sent = {"messages": Messages(3, 0, 0, 0, 0, 0, 0, 0)}
    copied = snapshots.device(under_way=(snapshots.connection("10.0.0.2", in_flight=1),), **sent)
    waiting = snapshots.device(under_way=(snapshots.connection("10.0.0.2", sends=1),), **sent)
    receiving = snapshots.device(under_way=(snapshots.connection("10.0.0.2", receives=1),), **sent)
    found = iter([Survey((), (), (), ()), *map(snapshots.survey, (copied, waiting, receiving))])
    monkeypatch.setattr(native_rank, "survey", lambda _: next(found))
    assert native_rank.settled_counters(42) is receiving


def test_a_driver_that_cannot_start_reports_the_reason() -> None:
    with pytest.raises(TestbedError, match=r"the plugin's init failed with .*192\.0\.2\.1"):
        NativeRun(prepare(address="192.0.2.1"), WORKLOAD)  # an address that no machine has (RFC 5737)


def test_a_failing_driver_reports_its_error_and_logs_the_plugins_messages(tmp_path: Path) -> None:
    # Without the loopback addresses no device can be opened.
    made = experiment(tmp_path, workload={"kind": "nccl_ring_allreduce", "bytes": 80_000})
    runner = runner_on(made, tmp_path / "logs", HOSTLIB_AGENT)
    with Steps(1) as steps, pytest.raises(ProcessError, match=r"the agent on h\d failed: the plugin's init failed"):
        list(runner.runs(steps))
    logs = "".join(log.read_text() for log in (tmp_path / "logs").glob("agent-*.log"))
    assert "NET/paralet" in logs


def test_a_run_that_exceeds_its_timeout_names_what_is_missing(tmp_path: Path) -> None:
    made = on_loopback(
        experiment(
            tmp_path,
            workload={"kind": "nccl_ring_allreduce", "bytes": 40_000_000},
            timeouts={"run_s": 0.01},
        )
    )
    runner = runner_on(made, tmp_path / "logs", HOSTLIB_AGENT)
    with Steps(1) as steps, pytest.raises(ProcessError, match="waiting for message"):
        list(runner.runs(steps))
