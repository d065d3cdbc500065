# SPDX-License-Identifier: Apache-2.0
"""`python3 -m testbed.nccl.ddp`: training with PyTorch's DDP over the plugin and over NCCL's Socket, ranks on one GPU.

It runs experiments/torch/nccl_ddp.py over one transport after the other, in one order and back, so that all share what
the machine suffers. NCCL's logs must show the wanted network, and the parameters of all ranks must be equal after the
training. Exit status: 0 all went well, 1 it did not, 2 the request cannot be carried out as it stands.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from netmodel.printable import printable_lines
from testbed.errors import InputError, TestbedError
from testbed.machine import this_machine
from testbed.nccl import back_ends, bundle, devices, environment, mps, netlog
from testbed.nccl.command_line import Parser, end, listed, number_from
from testbed.result_folder import sole_writer

_EPILOG = """\
Examples:
  %(prog)s --mps
  %(prog)s --transports soft,tcp,Socket --steps 20 --json
"""

_PROGRAM = "python3 -m testbed.nccl.ddp"
_WRONG_WORDS = 2
"""Exit status of a script whose command line is wrong."""


@dataclass(frozen=True, slots=True)
class Training:
    """One training over one transport. Times are those of the slowest rank."""

    transport: str
    step_s: float
    """Median seconds of a step."""
    alone_s: float
    """Median seconds of a step that exchanges no gradients."""
    losses: tuple[float, ...]
    """Of rank 0, step by step."""
    gradient_bytes: int
    """Bytes that a rank adds to those of the others in each step."""
    torch: str
    gpu: str


def training(
    script: Path,
    words: Sequence[str],
    transport: str,
    ranks: int,
    inherited: Mapping[str, str],
    plugin: Path | None,
    interface: str,
    logs: Path,
    timeout_s: int,
) -> Training:
    """Run the script in so many ranks. Raises TestbedError when a rank fails, its network is another one, or the ranks
    have come to different parameters, and InputError when the script does not know a word of `words`."""
    name = environment.file_name(transport)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])  # is free for the store of rank 0
    network_logs = [logs / f"ddp-{name}-rank{rank}.nccl.log" for rank in range(ranks)]
    for log in network_logs:
        log.unlink(missing_ok=True)  # that of an earlier training shows nothing about this one
    reports: list[dict[str, Any]] = []
    with ExitStack() as undo:
        running = []
        for rank, log in enumerate(network_logs):
            group = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            variables = environment.of_rank(inherited, transport, rank, plugin, interface, log) | group
            output = undo.enter_context((logs / f"ddp-{name}-rank{rank}.json").open("w+"))
            errors = undo.enter_context((logs / f"ddp-{name}-rank{rank}.stderr.log").open("w+"))
            argv = [sys.executable, str(script), *words]
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=variables)
            undo.callback(process.wait)
            undo.callback(process.kill)
            running.append((process, output, errors))
        _wait([process for process, *_ in running], timeout_s)
        for rank, (process, _, errors) in enumerate(running):
            if status := process.poll():
                errors.seek(0)
                said = (errors.read().strip().splitlines() or ["it said nothing"])[-1]
                text = f"rank {rank} over {transport} ended with status {status}: {said}; its logs are in {logs}"
                raise (InputError if status == _WRONG_WORDS else TestbedError)(text)
        for rank, (process, output, _) in enumerate(running):
            if process.poll() is None:
                text = f"rank {rank} over {transport} did not end within {timeout_s} s; its logs are in {logs}"
                raise TestbedError(text)
            output.seek(0)
            reports.append(_report(output.read()))
    for rank, log in enumerate(network_logs):
        said = log.read_text(errors="replace") if log.is_file() else ""
        if fault := netlog.fault(said, environment.named(transport).net):
            raise TestbedError(f"rank {rank} over {transport}: {fault}; the log is {log}")
    if len({report["parameters"] for report in reports}) != 1:
        raise TestbedError(f"the ranks over {transport} have come to different parameters; their logs are in {logs}")
    return Training(
        transport=transport,
        step_s=max(median(report["seconds"]) for report in reports),
        alone_s=max(median(report["alone"]) for report in reports),
        losses=tuple(reports[0]["losses"]),
        gradient_bytes=reports[0]["gradient_bytes"],
        torch=reports[0]["torch"],
        gpu=reports[0]["gpu"],
    )


def _wait(processes: Sequence[subprocess.Popen[bytes]], timeout_s: float) -> None:
    """Wait until all have ended, or one has failed: the others may wait for it."""
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        found = [process.poll() for process in processes]
        if any(found) or None not in found:
            return
        time.sleep(0.02)


def _report(text: str) -> dict[str, Any]:
    """The last line of a rank's output: libraries print before it."""
    try:
        report: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise TestbedError(f"a rank printed {text[-80:]!r}, which is not its report") from error
    return report


def in_turn(
    transports: Sequence[str], repetitions: int, once: Callable[[str], Training], say: Callable[[str], None]
) -> list[Training]:
    """The trainings of all repetitions: over the transports in one order, and in the next repetition back."""
    found = []
    for repetition in range(repetitions):
        for transport in transports if repetition % 2 == 0 else transports[::-1]:
            found.append(once(transport))
            last = found[-1]
            say(f"DDP over {transport}: a step takes {1e3 * last.step_s:,.1f} ms, {1e3 * last.alone_s:,.1f} ms alone")
    return found


def as_json(trainings: Sequence[Training], transports: Sequence[str], ranks: int, *, mps: bool) -> dict[str, Any]:
    """What `--json` prints. `ratios`: median step over that of the last transport; below 1 is faster."""
    step_s = {name: median(each.step_s for each in trainings if each.transport == name) for name in transports}
    *others, last = transports
    return {
        "bench": "nccl ddp",
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": asdict(this_machine()),
        "ranks": ranks,
        "mps": mps,
        "step_s": step_s,
        "ratios": {name: step_s[name] / step_s[last] for name in others},
        "trainings": [asdict(each) for each in trainings],
    }


def as_text(found: Mapping[str, Any]) -> str:
    """A sentence about the machine, and a row for each transport."""
    first, machine = found["trainings"][0], found["machine"]
    *_, last = found["step_s"]
    rows = [
        f"{found['ranks']} ranks on {first['gpu'] or 'the processor'}, torch {first['torch']}, "
        f"{first['gradient_bytes'] / 1e6:,.0f} MB of gradients; {machine['processor']}, {machine['cores']} cores, "
        f"TCP with {machine['congestion_control']}; {'MPS' if found['mps'] else 'no MPS'}",
        "",
        f"| transport | step, ms | alone, ms | step / step over {last} |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, step_s in found["step_s"].items():
        alone = median(each["alone_s"] for each in found["trainings"] if each["transport"] == name)
        rows.append(f"| {name} | {1e3 * step_s:,.1f} | {1e3 * alone:,.1f} | {found['ratios'].get(name, 1.0):.2f} |")
    return "\n".join(rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    options, words = _parser().parse_known_args(argv)
    try:
        _run(options, words)
    except InputError as error:
        return end(_PROGRAM, str(error), 2)
    except TestbedError as error:
        return end(_PROGRAM, str(error), 1)
    except KeyboardInterrupt:
        return end(_PROGRAM, "interrupted", 130)
    return 0


def _run(options: argparse.Namespace, words: Sequence[str]) -> None:
    transports = options.transports
    plugin = bundle.find_plugin(options.plugin) if any(environment.named(name).ours for name in transports) else None
    back_ends.check(transports, plugin)
    script = Path(__file__).parents[2] / bundle.TRAINING
    if not script.is_file():
        raise InputError(f"{script} is missing; run this in a checkout, or in a folder that `--bundle` has packed")
    if find_spec("torch") is None:
        raise InputError(f"PyTorch is not installed for {sys.executable}, and the training needs it")
    if devices.choose("auto") != "gpu":
        raise InputError("this machine has no NVIDIA GPU, and the training needs one")
    with ExitStack() as services:
        services.enter_context(sole_writer(options.out, "--out"))
        logs = options.out / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        inherited: Mapping[str, str] = dict(os.environ)
        if options.mps:
            inherited = services.enter_context(mps.service(dict(inherited)))

        def once(transport: str) -> Training:
            return training(
                script, words, transport, options.ranks, inherited, plugin, options.interface, logs, options.timeout_s
            )

        found = as_json(
            in_turn(transports, options.repetitions, once, _say), transports, options.ranks, mps=options.mps
        )
    (options.out / "ddp.json").write_text(json.dumps(found, indent=2))
    print(json.dumps(found, indent=2) if options.json else printable_lines(as_text(found)), flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=_PROGRAM,
        description="Train with PyTorch's DDP on a GPU over the plugin and over NCCL's Socket transport. What else is "
        "given goes to experiments/torch/nccl_ddp.py, such as --steps 20, --layers 4 or --width 512.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ranks", type=number_from(2), default=2, help="processes on one GPU (default: 2)")
    parser.add_argument(
        "--transports",
        type=listed(str),
        default=(environment.PLUGIN_TRANSPORT, "Socket"),
        help="as those of `paralet nccl` (default: paralet,Socket)",
    )
    parser.add_argument(
        "--repetitions", type=number_from(1), default=3, help="trainings over each transport (default: 3)"
    )
    parser.add_argument("--interface", default="lo", help="NCCL_SOCKET_IFNAME if unset (default: lo)")
    parser.add_argument("--plugin", type=Path, help="libnccl-net-paralet.so (default: ours)")
    parser.add_argument("--mps", action="store_true", help="let the ranks' kernels run at the same time, by CUDA's MPS")
    parser.add_argument("--timeout-s", type=number_from(1), default=120, help="timeout of one training (default: 120)")
    parser.add_argument("--out", type=Path, default=Path("results/nccl-ddp"), help="results (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _say(text: str) -> None:
    print(printable_lines(text), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
