# SPDX-License-Identifier: Apache-2.0
"""Text of unknown origin is harmless on terminals and in logs, and every call that shows text makes it so."""

from __future__ import annotations

import ast
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmodel.printable import printable, printable_lines

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("netmodel", "hostlib", "nccl_net_plugin", "paralet_pin", "paralet_torch", "sdn", "sim", "emul", "testbed")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("job 7, größer als 日本", "job 7, größer als 日本"),
        ("\x1b[31mred\x1b]0;title\a", r"\x1b[31mred\x1b]0;title\x07"),
        ("one\ntwo\r\x0bthree\u2028four", r"one\ntwo\r\x0bthree\u2028four"),
        ("\x9b2J \x85", r"\x9b2J \x85"),
        ("\u202eevil\u202c \u2066x\u2069", r"\u202eevil\u202c \u2066x\u2069"),
        ("a\u200bb\u200db\ufeffc\u00adc", r"a\u200bb\u200db\ufeffc\xadc"),
        ("\u3164\u2800\ufe0f", r"\u3164\u2800\ufe0f"),
        ("\udc80\ud800", r"\udc80\ud800"),
        (r"C:\new", r"C:\new"),
        ("\x7f", r"\x7f"),
        (Path("/tmp/a\nb"), r"/tmp/a\nb"),
    ],
)
def test_what_acts_on_a_terminal_is_escaped(text: object, shown: str) -> None:
    assert printable(text) == shown
    shown.encode()  # no lone surrogate is left


@given(st.text(st.characters()))  # surrogates included
def test_nothing_is_left_to_escape(text: str) -> None:
    shown = printable(text)
    assert not {unicodedata.category(letter) for letter in shown} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert printable(shown) == shown
    assert printable(text.encode("unicode_escape").decode()) == text.encode("unicode_escape").decode()


def test_lines_stay_lines() -> None:
    assert printable_lines("a\tb\n\x1bc\r\nd") == "a       b\n" + r"\x1bc\r" + "\nd"


# -- every call that shows text ----------------------------------------------------------------------------------------

SAFE_CALLS = {"printable", "printable_lines", "lines_of", "len", "getpid", "dumps", "json_of", "get_help"}
"""Their results need no escapes: `json.dumps` and `json_of` write ASCII, and click's help is this project's."""

LOGGING = {"debug", "info", "warning", "error", "exception", "critical", "log"}

ALLOWED = {
    ("emul/sandbox_init.py", "f'sandbox: cannot run {argv[0]}: {error.strerror}\\n'"): (
        "the caller's own command, told to the caller by a process that has no time to import netmodel"
    ),
    ("emul/sandbox_init.py", "f'sandbox: cannot be set up: {error.strerror or error}\\n'"): "the C library's words",
    ("testbed/bench/lossy_link.py", "listener.handle.hex()"): "hexadecimal digits, for the parent process",
    ("testbed/bench/lossy_link.py", "server.getsockname()[1]"): "a number, for the parent process",
    ("testbed/bench/lossy_link_main.py", "lossy_link.receive(kind, int(seed))"): "a number, for the parent process",
    (
        "testbed/training/published.py",
        "page()",
    ): "the own words and numbers of a model that imports nothing of ours",
    ("testbed/cli/export.py", "text"): "a file in another program's format, which escapes would damage",
    ("testbed/cli/tables.py", "workload.RIGHT"): "a constant of the workload's class",
    (
        "testbed/cli/stat.py",
        "exposition(first, detail or 'device')",
    ): "Prometheus' text format, which has escapes of its own",
    ("testbed/cli/top_screen.py", "map(_text, _port_cells(port))"): "_text makes them printable",
    ("testbed/cli/top_screen.py", "map(_text, _pinned_cells(flow, ends))"): "_text makes them printable",
    ("testbed/cli/top_screen.py", "map(_text, _cells(moment.lanes[index], moment.history[index], top, ends))"): (
        "_text makes them printable"
    ),
    ("testbed/cli/top_screen.py", "_text(f'{datetime.now():%H:%M:%S} {event}')"): "_text makes it printable",
    ("testbed/cli/top_screen.py", "name"): "headings, which are constants of the module",
}
"""What may be shown as it is, by file and expression, and why."""

CONSOLES = {
    "testbed/cli/tables.py": "PlainConsole, which escapes every string",
    "testbed/progress.py": "the bar, whose one text is made printable and read without markup",
}
"""Where rich's consoles are made. On a PlainConsole every string of `print`, `add_row` and tables is harmless."""


@cache
def sources() -> list[tuple[str, ast.Module]]:
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [(str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in files]


def name_of(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def shown_by(call: ast.Call, with_textual: bool) -> list[ast.expr]:
    """The arguments that a call shows on a terminal or in a log; none if it is not such a call."""
    called, name = call.func, name_of(call.func)
    owner = ast.unparse(called.value) if isinstance(called, ast.Attribute) else ""
    arguments = [argument.value if isinstance(argument, ast.Starred) else argument for argument in call.args]
    if (name == "print" and not owner) or (owner == "click" and name in ("echo", "secho")):
        to = next((ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == "file"), "sys.stdout")
        piped = to.endswith("stdin") or to in ("answers", "reports")  # lines for another program of this project
        return [] if piped else arguments
    if name in LOGGING and owner.strip("_").lower() in ("log", "logger", "logging"):
        return arguments[name == "log" :]
    if name == "warn" and owner == "warnings":
        return arguments[:1]
    if name in ("write", "writelines") and (
        owner in ("sys.stdout", "sys.stderr") or (with_textual and "events" in owner)
    ):
        return arguments
    if name in ("add_row", "add_column") and with_textual:
        return arguments
    return arguments[:1] if name == "Text" and not owner else []


def is_safe(shown: ast.expr) -> bool:
    """Whether this can only be harmless text: constants, numbers with a format, and what has passed a safe call."""
    match shown:
        case ast.Constant():
            return True
        case ast.Name(name):
            return name.isupper()  # a constant of a module
        case ast.JoinedStr(values):
            return all(map(is_safe, values))
        case ast.FormattedValue(value, _, ast.JoinedStr([ast.Constant(form)])):
            return form[-1] in "dfgeEx%," or is_safe(value)  # a str with such a format is a ValueError
        case ast.FormattedValue(value):
            return is_safe(value)
        case ast.IfExp(_, one, other) | ast.BinOp(one, _, other):
            return is_safe(one) and is_safe(other)
        case ast.Call(called):
            return name_of(called) in SAFE_CALLS
    return False


def unsafe_calls(path: str, module: ast.Module) -> Iterator[tuple[str, str]]:
    with_textual = any(
        isinstance(node, ast.ImportFrom) and "textual" in (node.module or "") for node in ast.walk(module)
    )
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            for shown in shown_by(node, with_textual):
                # Logging's `%d` and `%x` take numbers only: what they format is a constant's business.
                if not is_safe(shown) and not formats_number(node, shown):
                    yield path, ast.unparse(shown)


def formats_number(call: ast.Call, shown: ast.expr) -> bool:
    """Whether a logging call formats this argument as a number."""
    if not call.args or name_of(call.func) not in LOGGING or not isinstance(call.args[0], ast.Constant):
        return False
    forms = [part.lstrip("#0123456789.") for part in str(call.args[0].value).split("%")[1:]]
    place = call.args.index(shown) - 1
    return 0 <= place < len(forms) and forms[place][:1] in ("d", "x", "f")


def test_every_call_that_shows_text_makes_it_printable() -> None:
    found = {unsafe for path, module in sources() for unsafe in unsafe_calls(path, module)}
    assert found - ALLOWED.keys() == set(), "pass these through netmodel.printable, or say in ALLOWED why not"
    assert ALLOWED.keys() - found == set(), "these are allowed and no longer there"


def test_rich_draws_only_on_consoles_that_escape() -> None:
    called = {
        (path, name_of(node.func))
        for path, module in sources()
        for node in ast.walk(module)
        if isinstance(node, ast.Call)
    }
    assert {path for path, name in called if name in ("Console", "PlainConsole")} == CONSOLES.keys()
    assert not {path for path, name in called if name in ("from_markup", "render_markup", "from_ansi")}


@pytest.mark.parametrize(
    "line",
    [
        "print(name)",
        "print(f'job {name}')",
        "click.echo('a' + name, err=True)",
        "log.info(text)",
        "_log.warning('%s is down', name)",
        "sys.stderr.write(f'{error}\\n')",
        "warnings.warn(f'{name}')",
        "Text(name, style='bold')",
        "print(*names)",
    ],
)
def test_the_check_finds(line: str) -> None:
    assert list(unsafe_calls("x.py", ast.parse(line)))


@pytest.mark.parametrize(
    "line",
    [
        "print('done')",
        "print(f'{count:,} of {share:.1%}')",
        "click.echo(json.dumps(report))",
        "log.info('%s: %d', printable(name), count)",
        "print(line, file=far.stdin)",
        "click.echo(json.dumps(said) if as_json else printable(text))",
    ],
)
def test_the_check_passes(line: str) -> None:
    assert not list(unsafe_calls("x.py", ast.parse(line)))
