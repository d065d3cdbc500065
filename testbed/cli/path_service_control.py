# SPDX-License-Identifier: Apache-2.0
"""Commands of `paralet path-service` that change a running service, or tell what a change would do."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from netmodel.printable import printable
from testbed.cli.extras import require
from testbed.cli.path_service_options import json_option, operator_of, token_file_option
from testbed.errors import InputError, TestbedError

if TYPE_CHECKING:
    from netmodel import EcmpHash, Topology
    from sdn.path_service.control.answers import Changed, DrainState, Effects
    from sdn.path_service.control.client import Operator

_LOOK_S = 0.2  # between two looks whether a drained switch is empty
_MOST_SHOWN = 20  # moves, without --json
_Command = TypeVar("_Command", bound=Callable[..., Any])


def _dry_run(command: _Command) -> _Command:
    return click.option("--dry-run", is_flag=True, help="Only tell what would happen.")(command)


def _for(command: _Command) -> _Command:
    return click.option(
        "--for", "for_s", metavar="SECONDS", type=click.FloatRange(0, 1e9, min_open=True), help="End it by itself."
    )(command)


@click.command(
    epilog="Examples: paralet path-service drain spine2 --token-file /etc/paralet/token; "
    "paralet path-service drain leaf1:5 --dry-run --token-file /etc/paralet/token"
)
@click.argument("what", metavar="WHAT")
@token_file_option
@_for
@_dry_run
@click.option(
    "--wait",
    "wait_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Wait until it is empty, at most so long.",
)
@json_option
def drain(what: str, token_file: Path, for_s: float | None, dry_run: bool, wait_s: float, as_json: bool) -> None:
    """Have elephants leave WHAT, and new ones avoid it, while it goes on working.

    WHAT is a switch (spine2), a port of either end of a link (leaf1:5) or two switches (leaf1-spine2). No switch is
    touched. Exit status 1 when it is not empty in time.
    """
    with operator_of(token_file) as operator:
        changed = operator.drain(what, for_s=for_s, dry_run=dry_run)
        state = None if dry_run else _emptied(operator, what, wait_s)
    _show(changed, as_json, dry_run, f"drain of {what}", state)
    if state is not None and not state.empty and wait_s > 0:
        raise TestbedError(f"{what} is not empty after {wait_s:g} s: {state.elephants:g} elephants are still on it")


@click.command(epilog="Example: paralet path-service undrain spine2 --token-file /etc/paralet/token")
@click.argument("what", metavar="WHAT")
@token_file_option
@_dry_run
@json_option
def undrain(what: str, token_file: Path, dry_run: bool, as_json: bool) -> None:
    """End the drain of WHAT: elephants use it again."""
    with operator_of(token_file) as operator:
        changed = operator.undrain(what, dry_run=dry_run)
    _show(changed, as_json, dry_run, f"end of the drain of {what}")


@click.command(epilog="Example: paralet path-service pin h1 h5 --via spine3 --token-file /etc/paralet/token")
@click.argument("src", metavar="FROM")
@click.argument("dst", metavar="TO")
@click.option(
    "--via", metavar="WHAT", multiple=True, required=True, help="A switch or link that the path has; may be repeated."
)
@token_file_option
@_for
@_dry_run
@json_option
def pin(
    src: str, dst: str, via: tuple[str, ...], token_file: Path, for_s: float | None, dry_run: bool, as_json: bool
) -> None:
    """Have the elephants from host FROM to host TO take a path of your choice.

    Hosts are given by name or by one address. Where that path is dead or drained, they take another one until it is
    back.
    """
    with operator_of(token_file) as operator:
        changed = operator.pin(src, dst, via, for_s=for_s, dry_run=dry_run)
    _show(changed, as_json, dry_run, f"pin of {src} to {dst}")


@click.command(epilog="Example: paralet path-service unpin h1 h5 --token-file /etc/paralet/token")
@click.argument("src", metavar="FROM")
@click.argument("dst", metavar="TO")
@token_file_option
@_dry_run
@json_option
def unpin(src: str, dst: str, token_file: Path, dry_run: bool, as_json: bool) -> None:
    """End a pin: the planner decides again."""
    with operator_of(token_file) as operator:
        changed = operator.unpin(src, dst, dry_run=dry_run)
    _show(changed, as_json, dry_run, f"end of the pin of {src} to {dst}")


@click.command(epilog="Example: paralet path-service undo 7 --token-file /etc/paralet/token")
@click.argument("change", metavar="ID", type=click.IntRange(min=1))
@token_file_option
@_dry_run
@json_option
def undo(change: int, token_file: Path, dry_run: bool, as_json: bool) -> None:
    """Change back what change ID has changed, unless something has changed it since."""
    with operator_of(token_file) as operator:
        changed = operator.undo(change, dry_run=dry_run)
    _show(changed, as_json, dry_run, f"undo of change {change}")


@click.command(
    "what-if", epilog="Example: paralet path-service what-if --without spine2,spine3 --token-file /etc/paralet/token"
)
@click.option("--without", metavar="WHAT,..", required=True, help="Switches and links, as `drain` takes them.")
@token_file_option
@json_option
def what_if(without: str, token_file: Path, as_json: bool) -> None:
    """Tell which elephants would move without some switches, and how much slower jobs would be."""
    import msgspec

    names = [name for name in without.split(",") if name]
    if not names:
        raise click.BadParameter("give a switch or link", param_hint="--without")
    with operator_of(token_file) as operator:
        effects = operator.what_if(names)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(effects), indent=2))
    else:
        _print_effects(effects)


@click.command(epilog="Example: paralet path-service changes --token-file /etc/paralet/token")
@token_file_option
@click.option("--after", metavar="ID", type=click.IntRange(min=0), default=0, help="Show later ones only.")
@click.option("--most", metavar="N", type=click.IntRange(1, 10_000), default=1000, show_default=True)
@json_option
def changes(token_file: Path, after: int, most: int, as_json: bool) -> None:
    """Show what was changed, when and by whom, the oldest first."""
    import msgspec

    with operator_of(token_file) as operator:
        found = operator.changes(after, most)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found), indent=2))
        return
    for change in found.changes:
        click.echo(printable(f"{change.number:>6}  {change.at}  {change.who}: {change.what}"))


@click.command(epilog="Example: paralet path-service reload --token-file /etc/paralet/token")
@token_file_option
@json_option
def reload(token_file: Path, as_json: bool) -> None:
    """Have the service read its topology, --options and token anew, as SIGHUP does.

    What cannot change while it runs is refused as a whole.
    """
    import msgspec

    with operator_of(token_file) as operator:
        done = operator.reload()
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(done), indent=2))
        return
    parts = ("topology", done.topology), ("options", done.options), ("token", done.token)
    what = [name for name, changed in parts if changed]
    verb = "has" if what in ([], ["topology"], ["token"]) else "have"
    click.echo(printable(f"{' and '.join(what) or 'nothing'} {verb} changed; {done.hosts:d} hosts may connect"))
    for sentence in done.without_effect:
        click.echo(printable(f"without effect: {sentence}"))


@click.command(epilog="Example: paralet path-service repair /etc/paralet/token.state")
@click.argument("file", metavar="STATE", type=click.Path(path_type=Path, dir_okay=False))
@json_option
def repair(file: Path, as_json: bool) -> None:
    """Save what can be read of a damaged STATE file of a path service that does not run.

    The damaged file is kept beside it under another name.
    """
    require("service", "paralet path-service")
    from sdn.path_service.control.store import StoreError
    from sdn.path_service.control.store import repair as repaired

    try:
        saved = repaired(file)
    except StoreError as error:
        raise InputError(str(error)) from error
    if as_json:
        click.echo(json.dumps({**saved._asdict(), "damaged": str(saved.damaged)}, indent=2))
        return
    text = f"{saved.entries} drains, pins and dead links and {saved.changes} changes were saved"
    click.echo(printable(f"{text}; the former file is {saved.damaged}"))
    if not saved.is_whole:
        click.echo("some could not be read: look at `paralet path-service status` when the service runs again")


@click.command(
    epilog="Examples: paralet path-service replay events.jsonl; "
    "paralet path-service replay events.jsonl.2.gz events.jsonl.1 events.jsonl --json"
)
@click.argument(
    "logs", metavar="LOG...", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False, exists=True)
)
@json_option
def replay(logs: tuple[Path, ...], as_json: bool) -> None:
    """Decide again what a path service has decided, from its log, and compare.

    Parts of a rotated log are given in order, the oldest first; the first one has to begin with a start of the service.
    --json prints each decision as a line. Exit status 2 when the log is incomplete or the decisions differ.
    """
    require("service", "paralet path-service")
    import msgspec

    from sdn.path_service.log_file import LogError
    from sdn.path_service.replay import replay as replayed
    from testbed.cli.fabric import HASHES, hash_of

    def known_hash(name: str | None, topology: "Topology") -> "EcmpHash | None":
        return next((hash_of(known, topology) for known in HASHES if known == name), None)

    count, first, last = 0, "", ""
    try:
        for event in replayed(logs, known_hash):
            first, last = first or event.at, event.at
            for conn, message in event.sends:
                count += 1
                if as_json:
                    said = {"at": event.at, "t": event.t, "conn": conn, "message": msgspec.to_builtins(message)}
                    click.echo(json.dumps(said))
    except LogError as error:
        raise InputError(str(error)) from error
    if not as_json:
        click.echo(printable(f"{count:,} decisions from {first} to {last}, all as the log says"))


@click.command(epilog="Example: paralet path-service promote --token-file /etc/paralet/token")
@token_file_option
@json_option
def promote(token_file: Path, as_json: bool) -> None:
    """Have this one of two services lead, where too few hosts were left to decide.

    Only when the other one is stopped: this one cannot know. Hosts that have met both go with this one.
    """
    with operator_of(token_file) as operator:
        said = operator.promote()
        click.echo(
            json.dumps(said, indent=2) if as_json else printable(f"{said['role']} in generation {said['generation']}")
        )


COMMANDS = drain, undrain, pin, unpin, undo, what_if, changes, reload, promote, repair, replay


def _emptied(operator: "Operator", what: str, wait_s: float) -> "DrainState":
    """The state of a drain when it is empty, or when it has taken too long."""
    end_s = time.monotonic() + wait_s
    while True:
        state = next((drain for drain in operator.control().drains if drain.what == what), None)
        if state is None:
            raise TestbedError(f"the drain of {what} has ended meanwhile")
        if state.empty or time.monotonic() >= end_s:
            return state
        time.sleep(_LOOK_S)


def _show(changed: "Changed", as_json: bool, dry_run: bool, what: str, state: "DrainState | None" = None) -> None:
    import msgspec

    if as_json:
        said = msgspec.to_builtins(changed)
        click.echo(json.dumps(said if state is None else {**said, "state": msgspec.to_builtins(state)}, indent=2))
        return
    if dry_run:
        click.echo(printable(f"{what}: nothing was changed"))
    elif changed.change is None:
        click.echo(printable(f"{what}: that holds already"))
    else:
        until = next((edit.after.until for edit in changed.change.edits if edit.after is not None), None)
        end = "" if until is None else f", until {datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M:%S} UTC"
        click.echo(printable(f"change {changed.change.number}: {what}{end}"))
    _print_effects(changed.effects)
    for sentence in changed.without_effect:
        click.echo(printable(f"without effect: {sentence}"))
    if state is not None and state.empty:
        beside = f"; {state.random} elephants have random ports and may be on it" if state.random else ""
        click.echo(printable(f"{state.what} is empty{beside}"))


def _print_effects(effects: "Effects") -> None:
    click.echo(f"{effects.moved:d} of {effects.elephants:d} elephants move")
    for move in effects.moves[:_MOST_SHOWN]:
        before, after = (move.before or [["random ports"]])[0], (move.after or [["random ports"]])[0]
        click.echo(printable(f"  {move.device} to {move.peer}: {' '.join(before)} => {' '.join(after)}"))
    if effects.moved > _MOST_SHOWN:
        click.echo(f"  and {effects.moved - _MOST_SHOWN:d} more")
    if effects.without_path:
        click.echo(f"{effects.without_path:d} have no other path: they get random ports")
    if effects.worst_before is not None and effects.worst_after is not None:
        both = effects.worst_before, effects.worst_after
        worst = (f"{link.elephants:g} on {link.link.replace(' ', ' to ')}" for link in both)
        click.echo(printable(f"worst link: elephants {' => '.join(worst)}"))
    for job in effects.jobs:
        slow = "has no path" if job.slow_down is None else f"{job.slow_down:.2f} times slower"
        click.echo(printable(f"job {job.job or '(no name)'}: {slow}"))
