# SPDX-License-Identifier: Apache-2.0
"""The command line. Exit status: 0 all went well, 1 it did not, 2 the request cannot be carried out as it stands."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn, TypeVar

from testbed.errors import InputError, TestbedError
from testbed.nccl import bundle, environment, libraries, mps, probe, sizes
from testbed.nccl.collectives import COLLECTIVES
from testbed.nccl.environment import PLUGIN_TRANSPORT, TRANSPORTS
from testbed.nccl.results import DRY_RUN, Results, as_json, as_markdown
from testbed.nccl.runner import Plan, run

T = TypeVar("T")

_RESULTS, _TABLE, _LOGS = "results.json", "table.md", "logs"

_EPILOG = """\
Examples:
  %(prog)s
  %(prog)s --mps --sizes 1M,64M,512M --collectives all_reduce --json
  %(prog)s --bundle paralet-nccl.tar.gz   (here; unpack and run it on a machine without a registry)
"""


def main(argv: Sequence[str] | None = None, program: str = "python3 -m testbed.nccl") -> int:
    """Entry point; returns the exit status."""
    options = _parser(program).parse_args(argv)
    try:
        if options.bundle:
            _write_bundle(options.bundle, _plugin(options.plugin))
        else:
            _run(options)
    except InputError as error:
        return _end(program, str(error), 2)
    except TestbedError as error:
        return _end(program, str(error), 1)
    except KeyboardInterrupt:
        return _end(program, "interrupted", 130)
    return 0


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line in one sentence."""

    def error(self, message: str) -> NoReturn:
        """Report the error and end."""
        sys.exit(_end(self.prog, f"{message} (see `{self.prog} --help`)", 2))


def _parser(program: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=program,
        description="Run collectives of the real NCCL between ranks on one GPU, over the paralet plugin and NCCL's own "
        "Socket transport. Every result is compared with the expected data, NCCL's logs must show the wanted network, "
        "and bus bandwidth is measured.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ranks", metavar="N", type=_from(2), default=2, help="processes, each a rank (default: 2)")
    parser.add_argument("--gpus", metavar="N", type=_from(1), default=1, help="GPUs that the ranks share (default: 1)")
    parser.add_argument(
        "--sizes",
        metavar="LIST",
        type=_listed(sizes.parse),
        default=sizes.DEFAULT,
        help="size of the larger buffer of a rank, such as 8,64K,512M (default: 8 B to 512 MiB, times 4 each)",
    )
    parser.add_argument(
        "--collectives",
        metavar="LIST",
        type=_listed(_one_of(tuple(COLLECTIVES))),
        default=tuple(COLLECTIVES),
        help=f"some of {', '.join(COLLECTIVES)} (default: all)",
    )
    parser.add_argument(
        "--transports",
        metavar="LIST",
        type=_listed(_one_of(TRANSPORTS)),
        default=(PLUGIN_TRANSPORT, "Socket"),
        help=f"some of {', '.join(TRANSPORTS)}; the first is compared with the second (default: paralet,Socket)",
    )
    parser.add_argument(
        "--repetitions", metavar="N", type=_from(1), default=5, help="repetitions of every measurement (default: 5)"
    )
    parser.add_argument("--interface", metavar="NAME", default="lo", help="NCCL_SOCKET_IFNAME if unset (default: lo)")
    parser.add_argument("--plugin", metavar="FILE", type=Path, help="libnccl-net-paralet.so (default: ours)")
    parser.add_argument("--nccl", metavar="FILE", type=Path, help="libnccl.so.2 (default: found automatically)")
    parser.add_argument("--cudart", metavar="FILE", type=Path, help="libcudart.so (default: found automatically)")
    parser.add_argument("--mps", action="store_true", help="let the ranks' kernels run at the same time, by CUDA's MPS")
    parser.add_argument(
        "--timeout-s", metavar="S", type=_from(1), default=60, help="timeout of one repetition (default: 60)"
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=Path("results/nccl"),
        help="folder for results (default: results/nccl)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--bundle", metavar="FILE", type=Path, help="run nothing; pack the files for another machine")
    return parser


def _run(options: argparse.Namespace) -> None:
    plugin = _plugin(options.plugin) if PLUGIN_TRANSPORT in options.transports else None
    nccl = libraries.find(libraries.NCCL, "--nccl", options.nccl)
    cudart = libraries.find(libraries.CUDART, "--cudart", options.cudart)
    logs = _prepared(options.out)
    with ExitStack() as services:
        inherited: Mapping[str, str] = _with_path(os.environ)
        if options.mps:
            inherited = services.enter_context(mps.service(dict(inherited)))
        probing = environment.of_rank(
            inherited, options.transports[0], 0, plugin, options.interface, logs / "probe.log"
        )
        found = probe.ask(nccl, cudart, plugin, probing)
        if options.gpus > len(found.gpus):
            raise InputError(f"--gpus {options.gpus}: this machine has {len(found.gpus)}")
        plan = Plan(
            transports=options.transports,
            ranks=options.ranks,
            gpus=options.gpus,
            collectives=options.collectives,
            sizes=options.sizes,
            repetitions=options.repetitions,
            nccl=nccl,
            cudart=cudart,
            plugin=plugin,
            interface=options.interface,
            log_dir=logs,
            timeout_s=options.timeout_s,
            mps=options.mps,
        )
        say = _progress(found.is_stub)
        say(f"NCCL {found.nccl_version} ({nccl}), CUDA {found.cuda_runtime} ({cudart}), {found.gpus[0]}")
        results = run(plan, found, inherited, say, lambda so_far: _save(so_far, options.out))
    print(json.dumps(as_json(results), indent=2) if options.json else as_markdown(results), flush=True)
    say(f"results are in {options.out}")


def _plugin(given: Path | None) -> Path:
    """The plugin to use: the one named, the one that came with this folder, the one that the checkout has built."""
    if given is not None:
        if not given.is_file():
            raise InputError(f"--plugin: there is no file {given}")
        return given.resolve()
    carried = bundle.carried_plugin()
    if carried is not None:
        return carried
    try:
        import nccl_net_plugin

        return nccl_net_plugin.path()
    except (ImportError, FileNotFoundError) as error:
        raise InputError(f"{error}; or name the plugin with --plugin") from error


def _write_bundle(archive: Path, plugin: Path) -> None:
    names = bundle.write(archive, plugin)
    print(f"{archive}: {len(names)} files, {archive.stat().st_size:,} bytes. On the other machine:")
    print(f"    tar xzf {archive.name} && cd {bundle.NAME} && python3 -m testbed.nccl")


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


def _progress(is_stub: bool) -> Callable[[str], None]:
    mark = f"{DRY_RUN}: " if is_stub else ""
    return lambda sentence: print(f"{mark}{sentence}", file=sys.stderr, flush=True)


def _with_path(inherited: Mapping[str, str]) -> dict[str, str]:
    """An environment in which another Python finds this package, however this one found it."""
    root = str(Path(bundle.__file__).parents[2])
    before = inherited.get("PYTHONPATH")
    return {**inherited, "PYTHONPATH": f"{root}:{before}" if before else root}


def _listed(parse: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    def all_of(text: str) -> tuple[T, ...]:
        try:
            items = tuple(parse(item) for item in text.split(","))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        if len(set(items)) < len(items):
            raise argparse.ArgumentTypeError(f"{text!r} names something twice")
        return items

    return all_of


def _one_of(names: tuple[str, ...]) -> Callable[[str], str]:
    def checked(text: str) -> str:
        if text not in names:
            raise ValueError(f"{text!r} is none of {', '.join(names)}")
        return text

    return checked


def _from(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= 1024:
            raise argparse.ArgumentTypeError(f"{text!r} is no number from {least} to 1024")
        return int(text)

    return number


def _end(program: str, sentence: str, status: int) -> int:
    print(f"{program}: {' '.join(sentence.split())}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
