# SPDX-License-Identifier: Apache-2.0
"""YAML files into pydantic models, with all mistakes reported at once, each in one sentence with file, line and field.

The file is first composed into YAML nodes, which know their lines, and then constructed by the safe loader, so no tag
can run code. Pydantic says where in the data it found an error; the nodes say in which line that is. Models should
refuse unknown keys (`extra="forbid"`); such errors then suggest the key that was meant. Errors are clearest if unions
are discriminated.

YAML itself is narrowed a little: a key may not occur twice, a value may not contain itself, nesting ends at 100 levels,
a number at 100 characters, a file at 64 MiB, and aliases may not blow a file up to more than a million values.
"""

import difflib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from os import PathLike
from pathlib import Path as FilePath
from typing import Any, Self, TypeVar

import pydantic
import yaml
from pydantic_core import ErrorDetails

from netmodel.located import LocatedError, Location
from netmodel.model_keys import known_keys

_MAX_VALUES = 1_000_000
_MAX_DEPTH = 100
_MAX_BYTES = 64 << 20
_MAX_NUMBER = 100  # characters; Python reads hexadecimal numbers that it then refuses to write, even in an error
_SHOWN = 60  # characters of an offending value that an error repeats
_MOST_MISTAKES = 50  # reported per file

_Model = TypeVar("_Model", bound=pydantic.BaseModel)


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake in a file. Its str is "FILE:LINE: FIELD: what is wrong, and how to mend it".

    `line` counts from 1 and is None when the file cannot be read at all. `place` is empty when the whole document is
    meant. Both are then left out of the str.
    """

    file: str
    line: int | None
    place: Location
    what: str

    @property
    def field(self) -> str:
        """The place as a path, such as "links[3].rate"."""
        text = ""
        for segment in self.place:
            if isinstance(segment, int):
                text += f"[{segment}]"
            else:
                key = segment if segment.isprintable() else repr(segment)
                text += f".{key}" if text else key
        return text

    def __str__(self) -> str:
        line = "" if self.line is None else f":{self.line}"
        return f"{self.file}{line}: {f'{self.field}: ' if self.place else ''}{self.what}"


class SpecError(ValueError):
    """A file that cannot be used. Its str has a line for every one of its `mistakes`, in the order of the file."""

    def __init__(self, *mistakes: Mistake) -> None:
        super().__init__(*mistakes)  # by which exceptions are pickled
        self.mistakes = mistakes

    def __str__(self) -> str:
        lines = [str(mistake) for mistake in self.mistakes[:_MOST_MISTAKES]]
        if left_out := len(self.mistakes) - len(lines):
            lines.append(f"{self.mistakes[0].file}: {left_out} more mistake{'s' if left_out > 1 else ''}")
        return "\n".join(lines)


def read_text(path: str | PathLike[str]) -> str:
    """The text of the file at `path`. Raises SpecError, and nothing else, if it cannot be read or is too large."""
    file = str(path)
    try:
        with FilePath(path).open("rb") as source:
            raw = source.read(_MAX_BYTES + 1)  # not all of a file that has no end
        if len(raw) > _MAX_BYTES:
            raise _error(file, None, (), f"is larger than {_MAX_BYTES >> 20} MiB")
        return raw.decode()
    except OSError as error:
        raise _error(file, None, (), f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise _error(file, None, (), f"is not UTF-8 text: {error.reason} at byte {error.start}") from None


class Document:
    """A YAML file that has been read: its data, and the line of every value."""

    def __init__(self, text: str, file: str = "<text>") -> None:
        """`file` is what errors call the text. Raises SpecError."""
        self.file = file
        self._root, self.data = _parsed(text, file)

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Self:
        """The file at `path`. Raises SpecError, and nothing else, when it cannot be read or is not YAML."""
        return cls(read_text(path), str(path))

    def as_model(self, model: type[_Model], context: object = None) -> _Model:
        """The data as a `model`. Raises SpecError with all mistakes that the model's validators find.

        Validators get `context`.

        A `LocatedError` (such as `TopologyError`) of a validator is reported at its place below the validated value.
        """
        try:
            return model.model_validate(self.data, context=context)
        except pydantic.ValidationError as error:
            raise SpecError(*_mistakes(error, self._root, model, self.file)) from None

    def spread(self, key: str, entries: Callable[[Any], Sequence[Any]]) -> Self:
        """This document, in whose list at `key` each entry is replaced by what `entries` makes of it.

        The new entries have the lines of the old one. Without such a list this is the same document.
        """
        old = self.data.get(key) if isinstance(self.data, dict) else None
        if not isinstance(old, list) or not isinstance(self._root, yaml.MappingNode):
            return self
        new = [entries(entry) for entry in old]

        def repeated(node: yaml.Node) -> yaml.Node:
            nodes = [one for one, made in zip(node.value, new, strict=True) for _ in made]
            return yaml.SequenceNode(node.tag, nodes, node.start_mark, node.end_mark)

        found = copy(self)
        found.data = self.data | {key: [entry for made in new for entry in made]}
        found._root = yaml.MappingNode(
            self._root.tag,
            [(name, repeated(value) if name.value == key else value) for name, value in self._root.value],
            self._root.start_mark,
            self._root.end_mark,
        )
        return found

    def mistakes(self, errors: Iterable[LocatedError]) -> list[Mistake]:
        """Errors that were found in the data after it was read, with their lines."""
        found = []
        for error in errors:
            place, _, line = _placed(error.where, self._root, absent=False)
            found.append(Mistake(self.file, line, place, str(error)))
        return found


def load_yaml(path: str | PathLike[str], model: type[_Model]) -> _Model:
    """The file at `path` as a `model`. Raises SpecError as `Document` does."""
    return Document.read(path).as_model(model)


def parse_yaml(text: str, model: type[_Model], *, file: str = "<text>") -> _Model:
    """`load_yaml` of a text in memory, which errors call `file`."""
    return Document(text, file).as_model(model)


def _error(file: str, line: int | None, place: Location, what: str) -> SpecError:
    return SpecError(Mistake(file, line, place, what))


def _parsed(text: str, file: str) -> tuple[yaml.Node, Any]:
    safe_loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same rules in C, where PyYAML has them
    try:
        _check_size(yaml.parse(text, Loader=safe_loader), file)
        loader = safe_loader(text)
        try:
            root = loader.get_single_node()
            if root is None:
                raise _error(file, 1, (), "the file is empty, but a mapping of keys to values is needed")
            _Shape(file).check(root, ())
            return root, loader.construct_document(root)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(part for part in (error.context, error.problem) if part)
        raise _error(file, None if mark is None else mark.line + 1, (), f"not valid YAML: {what}") from None
    except SpecError:
        raise
    except (yaml.YAMLError, ValueError) as error:
        # Characters YAML forbids, and values that look like a date but are none, come without a mark.
        raise _error(file, None, (), f"not valid YAML: {str(error).splitlines()[0]}") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError):
        # Errors of PyYAML's constructors for values such as `!!bool maybe`, which they do not check.
        raise _error(file, None, (), "not valid YAML: a value does not suit the tag (!!..) before it") from None


def _check_size(events: Iterable[yaml.Event], file: str) -> None:
    """Refuses deep nesting before anything recurses over it: PyYAML's C code would overflow its stack. Refuses many
    values before any is kept: a value takes hundreds of times the memory of its text."""
    depth = nodes = 0
    for event in events:
        nodes += isinstance(event, yaml.NodeEvent)
        if nodes > 2 * _MAX_VALUES:  # a value, and its key
            raise _error(file, _line(event), (), f"the file has more than {_MAX_VALUES} values")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                raise _error(file, _line(event), (), f"nested more than {_MAX_DEPTH} levels deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _Shape:
    """Refuses repeated keys, values that contain themselves, and files that aliases make huge."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._sizes: dict[int, int] = {}  # id of a finished node -> values it stands for
        self._open: set[int] = set()

    def check(self, node: yaml.Node, at: Location) -> int:
        """The number of values that `node` stands for once aliases are spelt out. Raises SpecError."""
        if id(node) in self._sizes:
            return self._sizes[id(node)]
        if id(node) in self._open:
            raise _error(self._file, _line(node), at, "this value contains itself through an alias")
        self._open.add(id(node))
        size = 1
        if isinstance(node, yaml.MappingNode):
            first_line: dict[tuple[str, str], int] = {}
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode):
                    self._check_number(key, at)
                    if (key.tag, key.value) in first_line:
                        raise _error(
                            self._file,
                            _line(key),
                            (*at, key.value),
                            f"this key occurs twice, first in line {first_line[key.tag, key.value]}; remove one",
                        )
                    first_line[key.tag, key.value] = _line(key)
                size += self.check(value, (*at, str(key.value)))
        elif isinstance(node, yaml.SequenceNode):
            size += sum(self.check(item, (*at, i)) for i, item in enumerate(node.value))
        else:
            self._check_number(node, at)
        if size > _MAX_VALUES:
            raise _error(self._file, _line(node), at, f"stands for more than {_MAX_VALUES} values")
        self._open.remove(id(node))
        self._sizes[id(node)] = size
        return size

    def _check_number(self, node: yaml.Node, at: Location) -> None:
        if node.tag == "tag:yaml.org,2002:int" and len(node.value) > _MAX_NUMBER:
            what = f"a number has {_MAX_NUMBER} characters at most; write a smaller one"
            raise _error(self._file, _line(node), at, what)


def _mistakes(
    error: pydantic.ValidationError, root: yaml.Node, model: type[pydantic.BaseModel], file: str
) -> list[Mistake]:
    """The mistakes that pydantic found, in the order of the file, each once."""
    raised = [
        _Finding(details, root, cause) for details in error.errors(include_url=False) for cause in _causes(details)
    ]
    # A value that fits no branch of a union fails once per branch. One sentence names all values that would fit.
    places: defaultdict[tuple[Location, bool], list[_Finding]] = defaultdict(list)
    for finding in _nearest_branches(raised):
        places[finding.place, finding.unknown_key].append(finding)
    mistakes, meant = [], set()
    for (place, unknown_key), same in places.items():
        if unknown_key:
            keys = sorted({key for finding in same for key in known_keys(model, finding.location[:-1])})
            close = difflib.get_close_matches(str(place[-1]), keys, n=1)
            meant |= {(*place[:-1], key) for key in close}
            what = f"unknown key; did you mean {close[0]!r}?" if close else f"unknown key; known are {', '.join(keys)}"
        else:
            what = ", or ".join(dict.fromkeys(finding.sentence for finding in same)) + same[0].value_found
        mistakes.append((same[0].absent, Mistake(file, same[0].line, place, what)))
    # A mistyped key is one mistake, although the key that was meant is then missing.
    reported = [mistake for absent, mistake in mistakes if not (absent and mistake.place in meant)]
    return sorted(reported, key=lambda mistake: mistake.line or 0)


def _causes(details: ErrorDetails) -> Sequence[LocatedError | None]:
    """The errors that a validator raised together; one None for what pydantic itself has found."""
    error = details.get("ctx", {}).get("error")
    return error.all if isinstance(error, LocatedError) else (None,)


class _Finding:
    """One pydantic error, or one `cause` of several that it stands for, placed in the file."""

    def __init__(self, details: ErrorDetails, root: yaml.Node, cause: LocatedError | None) -> None:
        self._details = details
        self._cause = cause
        self._kind, context = details["type"], details.get("ctx", {})
        below: Location = () if cause is None else cause.where
        if self._kind in ("union_tag_invalid", "union_tag_not_found"):
            below = (context["discriminator"].strip("'"),)  # the key that should say which branch is meant
        self.location: Location = (*details["loc"], *below)
        if self._kind == "invalid_key":
            self.location = (*details["loc"][:-1], str(details["input"]))  # pydantic's own names truth values 0 and 1
        self.unknown_key = self._kind == "extra_forbidden"
        self.absent = self._kind in ("missing", "union_tag_not_found")
        self.place, self.tags, self.line = _placed(self.location, root, self.absent)

    @property
    def sentence(self) -> str:
        """A sentence that says what is wrong and how to mend it, without the value found."""
        if self._cause is not None:
            return str(self._cause)
        if self.absent:
            return "is missing; add it"
        if self._kind == "union_tag_invalid":
            context = self._details["ctx"]
            return f"must be one of {context['expected_tags']}, not {context['tag']!r}"
        if self._kind in ("model_type", "model_attributes_type", "dict_type"):
            return "must be a mapping of keys to values"
        if self._kind == "invalid_key":
            return f"this key is read as {self._details['input']!r}, not as text; put it in quotes"
        message = self._details["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
        return re.sub(r"^[A-Z][a-z]+ should (be|have|match) ", r"must \1 ", message).replace(" after validation", "")

    @property
    def value_found(self) -> str:
        """ ", not VALUE" where the sentence says what the value must be."""
        if not self.sentence.startswith(("must be ", "must match ")) or self._kind == "union_tag_invalid":
            return ""
        shown = repr(self._details["input"])
        return f", not {shown if len(shown) <= _SHOWN else f'{shown[:_SHOWN]}..'}"


def _nearest_branches(findings: list[_Finding]) -> list[_Finding]:
    """Keeps those branches of a failed union that failed in the fewest places, then the deepest.

    The author meant one branch; errors of the others (all of its keys unknown there) would only mislead.
    """
    failures: defaultdict[Location, dict[str | int, tuple[int, int]]] = defaultdict(dict)
    for finding in findings:
        for at, tag in finding.tags:
            count, depth = failures[at].get(tag, (0, 0))
            failures[at][tag] = (count + 1, min(depth, -len(finding.place)))
    kept = [f for f in findings if all(failures[at][tag] == min(failures[at].values()) for at, tag in f.tags)]
    return kept or findings


def _placed(
    location: Location, root: yaml.Node, absent: bool
) -> tuple[Location, tuple[tuple[Location, str | int], ...], int]:
    """Follows a pydantic location through the nodes: (keys and indices that exist, union tags met, line)."""
    node, line = root, _line(root)
    place: list[str | int] = []
    tags: list[tuple[Location, str | int]] = []
    for step, segment in enumerate(location):
        child = _child(node, segment)
        if child is not None:
            node, line = child
            place.append(segment)
        elif absent and step == len(location) - 1:
            place.append(segment)  # the absent key itself, reported at the mapping that lacks it
        elif segment != "[key]":
            tags.append((tuple(place), segment))
    return tuple(place), tuple(tags), line


def _child(node: yaml.Node, segment: str | int) -> tuple[yaml.Node, int] | None:
    """The node below `node` at `segment`, and the line where it starts (for a mapping, that of its key)."""
    if isinstance(node, yaml.SequenceNode):
        if isinstance(segment, int) and 0 <= segment < len(node.value):
            return node.value[segment], _line(node.value[segment])
        return None
    if not isinstance(node, yaml.MappingNode):
        return None
    merged: list[yaml.Node] = []
    for key, value in node.value:
        if key.tag == "tag:yaml.org,2002:merge":
            merged.extend(value.value if isinstance(value, yaml.SequenceNode) else [value])
        elif isinstance(key, yaml.ScalarNode) and str(segment) in (key.value, _boolean_name(key)):
            return value, _line(key)
    for source in merged:
        if (found := _child(source, segment)) is not None:
            return found
    return None


def _boolean_name(key: yaml.ScalarNode) -> str | None:
    """How pydantic names a key such as `on` or `no`, which YAML 1.1 reads as a truth value."""
    if key.tag != "tag:yaml.org,2002:bool":
        return None
    return str(yaml.SafeLoader.bool_values[key.value.lower()])


def _line(node: yaml.Node | yaml.Event) -> int:
    return 1 if node.start_mark is None else int(node.start_mark.line) + 1
