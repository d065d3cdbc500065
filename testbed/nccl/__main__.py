# SPDX-License-Identifier: Apache-2.0
"""The command line. Exit status: 0 all went well, 1 it did not, 2 the request cannot be carried out as it stands."""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path

from netmodel.printable import printable, printable_lines
from testbed.errors import InputError, TestbedError
from testbed.nccl import back_ends, bundle, cores, devices, environment, mps, probe, sizes
from testbed.nccl.collectives import COLLECTIVES
from testbed.nccl.command_line import Help, Parser, end, listed, number_from, one_of
from testbed.nccl.devices import Kind
from testbed.nccl.elements import REDUCTIONS, TYPES
from testbed.nccl.environment import PLUGIN_TRANSPORT, TRANSPORTS
from testbed.nccl.results import AUTO, Results, Setup, as_json, as_markdown
from testbed.nccl.runner import Plan, run
from testbed.result_folder import sole_writer

_RESULTS, _TABLE, _LOGS = "results.json", "table.md", "logs"

_ALGORITHMS = (AUTO, "Ring", "Tree")
_PROTOCOLS = (AUTO, "Simple", "LL", "LL128")

_SIZES: dict[Kind, tuple[int, ...]] = {
    "gpu": tuple(8 * 4**step for step in range(14)),  # 8 B to 512 MiB
    "cpu": (8, 64 << 10, 1 << 20, 4 << 20),
}
_REPETITIONS: dict[Kind, int] = {"gpu": 5, "cpu": 3}

_DESCRIPTION = """\
Run collectives of the real NCCL over the paralet plugin and over NCCL's own
Socket transport, on a GPU or on the CPU device, for which `make nccl` installs
NCCL. Every result is compared with the expected data, NCCL's logs must show the
wanted network, and bus bandwidth is measured.
"""

_EPILOG = """\
Examples:
  %(prog)s --ranks 4
  %(prog)s --collectives all_reduce,all_gather --types float32,bfloat16 --ops sum,max --algorithms Ring,Tree
  %(prog)s --nccl 2.27.7 --sizes 8,1M --json
  %(prog)s --transports soft,Socket:4x1,Socket --collectives all_reduce
  %(prog)s --device gpu --mps --sizes 1M,64M,512M
  %(prog)s --bundle paralet-nccl.tar.gz   (here; unpack and run it on a machine without a registry)
"""


def main(argv: Sequence[str] | None = None, program: str = "python3 -m testbed.nccl") -> int:
    """Entry point; returns the exit status."""
    options = _parser(program).parse_args(argv)
    try:
        if options.bundle:
            _write_bundle(options.bundle, bundle.find_plugin(options.plugin))
        else:
            _run(options)
    except InputError as error:
        return end(program, str(error), 2)
    except TestbedError as error:
        return end(program, str(error), 1)
    except KeyboardInterrupt:
        return end(program, "interrupted", 130)
    return 0


def _parser(program: str) -> argparse.ArgumentParser:
    parser = Parser(
        prog=program,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=Help,
    )
    parser.add_argument(
        "--ranks", metavar="N", type=number_from(2), default=2, help="processes, each a rank (default: 2)"
    )
    parser.add_argument(
        "--device",
        choices=devices.CHOICES,
        default="auto",
        help="auto: a GPU where this machine has one, otherwise the CPU device (default: auto)",
    )
    parser.add_argument(
        "--gpus", metavar="N", type=number_from(1), default=1, help="GPUs that the ranks share (default: 1)"
    )
    parser.add_argument(
        "--sizes",
        metavar="LIST",
        type=listed(sizes.parse),
        help="size of the larger buffer of a rank, such as 8,64K,512M (default: 8,64K,1M,4M on the CPU device; 8 B to "
        "512 MiB, times 4 each, on a GPU)",
    )
    for option, names, default, what in (
        ("--collectives", tuple(COLLECTIVES), tuple(COLLECTIVES), "collectives"),
        ("--types", tuple(TYPES), ("float32",), "element types"),
        ("--ops", tuple(REDUCTIONS), ("sum",), "reductions, for the collectives that reduce"),
        ("--algorithms", _ALGORITHMS, (AUTO,), "NCCL_ALGO; Tree is for all_reduce; auto: NCCL chooses"),
        ("--protocols", _PROTOCOLS, (AUTO,), "NCCL_PROTO; auto: NCCL chooses"),
    ):
        said = "all" if default == names else ",".join(default)
        parser.add_argument(
            option,
            metavar="LIST",
            type=listed(one_of(names)),
            default=default,
            help=f"{what}: some of {', '.join(names)} (default: {said})",
        )
    parser.add_argument("--in-place", action="store_true", help="measure in place too, where a collective can be")
    parser.add_argument(
        "--transports",
        metavar="LIST",
        type=listed(str),
        default=(PLUGIN_TRANSPORT, "Socket"),
        help=f"some of {', '.join(TRANSPORTS)}, Socket:TxS (T threads with S sockets each) and back ends of the "
        "plugin, such as soft, or soft:2 with two shards; each is compared with the last (default: paralet,Socket)",
    )
    parser.add_argument(
        "--cores-per-rank",
        metavar="N",
        type=number_from(1),
        help="give each rank N cores of its own (default: all ranks share all cores)",
    )
    parser.add_argument(
        "--repetitions",
        metavar="N",
        type=number_from(1),
        help="repetitions of every measurement (default: 3 on the CPU device, 5 on a GPU)",
    )
    parser.add_argument("--interface", metavar="NAME", default="lo", help="NCCL_SOCKET_IFNAME if unset (default: lo)")
    parser.add_argument("--plugin", metavar="FILE", type=Path, help="libnccl-net-paralet.so (default: ours)")
    parser.add_argument(
        "--nccl",
        metavar="VERSION|FILE",
        help="a release that `make nccl` has installed, such as 2.27.7, or a libnccl.so.2 (default: the newest release "
        "installed; on a GPU the library that this machine has)",
    )
    parser.add_argument("--cudart", metavar="FILE", type=Path, help="libcudart.so, for a GPU (default: found)")
    parser.add_argument(
        "--mps", action="store_true", help="on a GPU: let the ranks' kernels run at the same time, by CUDA's MPS"
    )
    parser.add_argument(
        "--timeout-s", metavar="S", type=number_from(1), default=60, help="timeout of one repetition (default: 60)"
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=Path("results/nccl"),
        help="folder for results (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument(
        "--bundle", metavar="FILE", type=Path, help="run nothing; pack the files for another machine with a GPU"
    )
    return parser


def _run(options: argparse.Namespace) -> None:
    plugin = (
        bundle.find_plugin(options.plugin) if any(environment.named(each).ours for each in options.transports) else None
    )
    back_ends.check(options.transports, plugin)
    kind = devices.choose(options.device)
    _check(options, kind)
    used = devices.find(kind, options.nccl, options.cudart)
    with ExitStack() as services:
        services.enter_context(sole_writer(options.out, "--out"))
        logs = _prepared(options.out)
        inherited: Mapping[str, str] = _with_path(os.environ)
        if options.mps:
            inherited = services.enter_context(mps.service(dict(inherited)))
        probing = environment.of_rank(
            inherited, options.transports[0], 0, plugin, options.interface, logs / "probe.log"
        )
        found = probe.ask(used, plugin, probing)
        if kind == "gpu" and options.gpus > len(found.gpus):
            raise InputError(f"--gpus {options.gpus}: this machine has {len(found.gpus)}")
        plan = Plan(
            libraries=used,
            transports=options.transports,
            ranks=options.ranks,
            gpus=options.gpus if kind == "gpu" else 0,
            setups=tuple(Setup(*each) for each in product(options.algorithms, options.protocols)),
            collectives=options.collectives,
            sizes=options.sizes or _SIZES[kind],
            types=options.types,
            redops=options.ops,
            in_place=options.in_place,
            repetitions=options.repetitions or _REPETITIONS[kind],
            plugin=plugin,
            interface=options.interface,
            log_dir=logs,
            timeout_s=options.timeout_s,
            mps=options.mps,
            cores_per_rank=options.cores_per_rank,
        )
        _say(f"NCCL {found.nccl_version} ({used.nccl}) on {', '.join(found.gpus) or 'the CPU device'}")
        results = run(plan, found, inherited, _say, lambda so_far: _save(so_far, options.out))
    print(json.dumps(as_json(results), indent=2) if options.json else printable_lines(as_markdown(results)), flush=True)
    _say(f"results are in {options.out}")
    if results.wrong:
        raise TestbedError(f"{results.wrong:,} elements are wrong; the logs are in {logs}")


def _check(options: argparse.Namespace, kind: Kind) -> None:
    """Raises InputError for options that do not go together."""
    if options.cores_per_rank is not None:
        cores.cores_of(options.ranks, options.cores_per_rank)
    if kind == "cpu" and options.mps:
        raise InputError("--mps is for a GPU; this run is on the CPU device")
    if options.algorithms == ("Tree",) and "all_reduce" not in options.collectives:
        raise InputError("--algorithms Tree: NCCL's trees carry all_reduce only; add it to --collectives")
    for name in options.types if "sum" in options.ops or "avg" in options.ops else ():
        if options.ranks > TYPES[name].exact:
            raise InputError(f"--types {name}: sums of {options.ranks} ranks are not exact in {name}; use fewer ranks")


def _write_bundle(archive: Path, plugin: Path) -> None:
    names = bundle.write(archive, plugin)
    print(printable(f"{archive}: {len(names)} files, {archive.stat().st_size:,} bytes. On the other machine:"))
    print(printable(f"    tar xzf {archive.name} && cd {bundle.NAME} && python3 -m testbed.nccl"))


def _prepared(out: Path) -> Path:
    """An empty folder for logs, and no results of an earlier run beside it."""
    logs = out / _LOGS
    try:
        logs.mkdir(parents=True, exist_ok=True)
        for old in (*logs.glob("*.log"), out / _RESULTS, out / _TABLE):
            old.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"--out: cannot write to {out}: {error.strerror}") from error
    return logs.resolve()


def _save(results: Results, out: Path) -> None:
    (out / _RESULTS).write_text(json.dumps(as_json(results), indent=2) + "\n")
    (out / _TABLE).write_text(as_markdown(results))


def _say(sentence: str) -> None:
    """Progress, for people."""
    print(printable(sentence), file=sys.stderr, flush=True)


def _with_path(inherited: Mapping[str, str]) -> dict[str, str]:
    """An environment in which another Python finds this package, however this one found it."""
    root = str(Path(bundle.__file__).parents[2])
    before = inherited.get("PYTHONPATH")
    return {**inherited, "PYTHONPATH": f"{root}:{before}" if before else root}


if __name__ == "__main__":
    sys.exit(main())
