# SPDX-License-Identifier: Apache-2.0
import pickle
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator

from netmodel import Document, LocatedError, SpecError, load_yaml, parse_yaml, raise_all, yaml_source


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Plain(Strict):
    name: Literal["plain"]


class Sliced(Strict):
    name: Literal["sliced"]
    lanes: int

    @field_validator("lanes")
    @classmethod
    def _positive(cls, lanes: int) -> int:
        if lanes < 1:
            raise ValueError("needs at least one lane")
        return lanes


class Ring(Strict):
    ranks: list[str]
    repeat: int


class Shuffle(Strict):
    seed: int
    repeat: int


class Spec(Strict):
    title: str
    policies: list[Annotated[Plain | Sliced, Field(discriminator="name")]]
    work: Ring | Shuffle
    size: int | list[int] = 1
    named: dict[str, Sliced] = {}
    later: Sliced | None = None
    pairs: list[int] = []
    hosts: list[str] = Field(default=[], min_length=1)
    label: str = Field(default="", pattern="^[a-z]*$")

    @field_validator("pairs")
    @classmethod
    def _not_below_zero(cls, pairs: list[int]) -> list[int]:
        raise_all([LocatedError("is below 0", (index,)) for index, value in enumerate(pairs) if value < 0])
        return pairs


GOOD = """\
title: a spec
policies:
  - name: plain
  - name: sliced
    lanes: 4
work:
  ranks: [h1, h2]
  repeat: 3
size: 5
named:
  x: {name: sliced, lanes: 8}
"""


def error(text: str) -> str:
    with pytest.raises(SpecError) as refusal:
        parse_yaml(text, Spec, file="s.yaml")
    return str(refusal.value)


def test_a_good_file_becomes_a_model(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(GOOD)
    spec = load_yaml(file, Spec)
    assert isinstance(spec.policies[1], Sliced)
    assert isinstance(spec.work, Ring)
    assert spec.named["x"].lanes == 8


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("title: a", "titel: a", "s.yaml:1: titel: unknown key; did you mean 'title'?"),
        ("size: 5", "zzz: 5", "s.yaml:9: zzz: unknown key; known are hosts, label, later, named, pairs, "),
        ("title: a spec\n", "", "s.yaml:1: title: is missing; add it"),
        ("title: a spec", "title: [1]", "s.yaml:1: title: must be a valid string, not [1]"),
        ("size: 5", "5: size", "s.yaml:9: 5: this key is read as 5, not as text; put it in quotes"),
        ("size: 5", "on: 5", "s.yaml:9: True: this key is read as True, not as text; put it in quotes"),
        # lists and discriminated unions
        ("    lanes", "    lane", "s.yaml:5: policies[1].lane: unknown key; did you mean 'lanes'?"),
        ("    lanes: 4\n", "", "s.yaml:4: policies[1].lanes: is missing; add it"),
        ("    lanes: 4", "    lanes: 0", "s.yaml:5: policies[1].lanes: needs at least one lane"),
        ("    lanes: 4", "    lanes: four", "s.yaml:5: policies[1].lanes: must be a valid integer, not 'four'"),
        ("plain", "plane", "s.yaml:3: policies[0].name: must be one of 'plain', 'sliced', not 'plane'"),
        ("- name: plain", "- nam: plain", "s.yaml:3: policies[0].name: is missing; add it"),
        ("- name: plain", "- plain", "s.yaml:3: policies[0]: must be a mapping of keys to values, not 'plain'"),
        # unions without a discriminator: mistakes of the branch that fits best
        ("repeat: 3", "repaet: 3", "s.yaml:8: work.repaet: unknown key; did you mean 'repeat'?"),
        ("[h1, h2]", "[h1, 2]", "s.yaml:7: work.ranks[1]: must be a valid string, not 2"),
        ("size: 5", "size: [5, six]", "s.yaml:9: size[1]: must be a valid integer, not 'six'"),
        ("size: 5", "size: six", "s.yaml:9: size: must be a valid integer, or must be a valid list, not 'six'"),
        # mappings with free keys, and optional parts
        ("lanes: 8", "lans: 8", "s.yaml:11: named.x.lans: unknown key; did you mean 'lanes'?"),
        ("size: 5", "later: {name: sliced, lane: 1}", "s.yaml:9: later.lane: unknown key; did you mean 'lanes'?"),
        # what pydantic says of "List" and "String"
        ("size: 5", "hosts: []", "s.yaml:9: hosts: must have at least 1 item, not 0"),
        ("size: 5", "label: A B", "s.yaml:9: label: must match pattern '^[a-z]*$', not 'A B'"),
        # YAML itself
        ("size: 5", "title: b", "s.yaml:9: title: this key occurs twice, first in line 1; remove one"),
        ("lanes: 8", "name: x", "s.yaml:11: named.x.name: this key occurs twice, first in line 11; remove one"),
        ("size: 5", "size: {", "s.yaml:11: not valid YAML"),
        ("size: 5", "size: &a [*a]", "s.yaml:9: size[0]: this value contains itself through an alias"),
        ("size: 5", "size: !!python/name:os.system x", "s.yaml:9: not valid YAML: could not determine a constructor"),
        ("size: 5", "size: " + "[" * 200 + "]" * 200, "s.yaml:9: nested more than 100 levels deep"),
        ("size: 5", "---\nsize: 5", "s.yaml:9: not valid YAML: expected a single document"),
        ("size: 5", "size: 2001-13-45", "s.yaml: not valid YAML: month must be in 1..12"),
        ("size: 5", "size: \x07", "s.yaml: not valid YAML"),
        ("size: 5", f"size: 0x{'f' * 5000}", "s.yaml:9: size: a number has 100 characters at most"),
        ("size: 5", f"? 0x{'f' * 5000}\n: 5", "s.yaml:9: a number has 100 characters at most"),
        ("size: 5", f"size: {'7' * 5000}", "s.yaml:9: size: a number has 100 characters at most"),
        ("size: 5", "? [a]\n: 5", "s.yaml:9: not valid YAML"),
    ],
)
def test_errors_name_file_line_and_field(old: str, new: str, expected: str) -> None:
    assert GOOD.count(old) >= 1
    sentence = error(GOOD.replace(old, new, 1))
    assert sentence.startswith(expected)
    assert "\n" not in sentence


def test_all_mistakes_are_reported_in_the_order_of_the_file() -> None:
    text = GOOD.replace("title", "titel").replace("lanes: 4", "lanes: 0").replace("size: 5", "size: six")
    text = text.replace("[h1, h2]", "[h1, 2]").replace("{name: sliced, lanes: 8}", "{name: sliced}")
    assert error(text).splitlines() == [
        "s.yaml:1: titel: unknown key; did you mean 'title'?",
        "s.yaml:5: policies[1].lanes: needs at least one lane",
        "s.yaml:7: work.ranks[1]: must be a valid string, not 2",
        "s.yaml:9: size: must be a valid integer, or must be a valid list, not 'six'",
        "s.yaml:11: named.x.lanes: is missing; add it",
    ]


def test_a_validator_may_raise_several_errors_at_once() -> None:
    report = error(GOOD.replace("size: 5", "pairs: [1, -2, 3, -4]"))
    assert report.splitlines() == [f"s.yaml:9: pairs[{n}]: is below 0" for n in (1, 3)]


def test_the_first_of_very_many_mistakes_are_reported() -> None:
    lines = error(GOOD.replace("size: 5", f"pairs: [{', '.join(['six'] * 60)}]")).splitlines()
    assert len(lines) == 51
    assert lines[-1] == "s.yaml: 10 more mistakes"


def test_errors_found_later_get_their_lines() -> None:
    document = Document(GOOD, "s.yaml")
    found = document.mistakes([LocatedError("is too long", ("work", "ranks", 1)), LocatedError("is odd")])
    assert [str(mistake) for mistake in found] == ["s.yaml:7: work.ranks[1]: is too long", "s.yaml:1: is odd"]


def test_documents_that_are_no_mapping() -> None:
    assert error("") == "s.yaml:1: the file is empty, but a mapping of keys to values is needed"
    assert error("# nothing\n") == error("")
    assert error("- 1") == "s.yaml:1: must be a mapping of keys to values, not [1]"


def test_nesting_that_would_overflow_the_stack_is_refused() -> None:
    # libyaml since 0.2.6 has a limit of its own, which it meets while it looks ahead for the end of a key.
    report = error("[" * 100_000 + "]" * 100_000)
    assert "nested more than 100 levels deep" in report or "exceeded maximum nesting depth" in report
    assert "nested more than 100 levels deep" in error("- " * 5_000)


def test_aliases_that_would_blow_up_are_refused() -> None:
    bomb = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10)
    )
    assert "stands for more than 1000000 values" in error(bomb)


def test_values_are_counted_before_any_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_source, "_MAX_VALUES", 1000)
    monkeypatch.setattr(yaml_source, "_Shape", lambda _: pytest.fail("the file was read whole"))
    values = "\n".join(["- 1"] * 2001)
    assert error(values) == "s.yaml:2000: the file has more than 1000 values"


def test_errors_in_merged_mappings_point_at_their_line() -> None:
    text = GOOD.replace("size: 5", "later:\n  <<: {name: sliced,\n    lanes: 0}")
    assert error(text) == "s.yaml:11: later.lanes: needs at least one lane"


def test_a_long_value_is_cut_short() -> None:
    report = error(GOOD.replace("size: 5", f"size: {'x' * 500}"))
    assert len(report) < 200
    assert report.endswith("..")


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda file: None, "cannot be read: No such file or directory"),
        (lambda file: file.mkdir(), "cannot be read: Is a directory"),
        (lambda file: file.write_bytes(b"title: \xff"), "is not UTF-8 text"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, make: object, what: str) -> None:
    file = tmp_path / "s.yaml"
    make(file)  # type: ignore[operator]
    with pytest.raises(SpecError) as refusal:
        load_yaml(file, Spec)
    assert str(refusal.value).startswith(f"{file}: {what}")
    assert refusal.value.mistakes[0].line is None


def test_a_file_without_end_is_refused() -> None:
    with pytest.raises(SpecError, match="/dev/zero: is larger than 64 MiB"):
        load_yaml("/dev/zero", Spec)


def test_an_error_keeps_its_parts_also_across_processes() -> None:
    with pytest.raises(SpecError) as refusal:
        parse_yaml(GOOD.replace("lanes: 4", "lanes: 0"), Spec, file="s.yaml")
    for raised in (refusal.value, pickle.loads(pickle.dumps(refusal.value))):
        (mistake,) = raised.mistakes
        assert (mistake.file, mistake.line, mistake.field) == ("s.yaml", 5, "policies[1].lanes")
        assert mistake.what == "needs at least one lane"
        assert str(raised) == "s.yaml:5: policies[1].lanes: needs at least one lane"


@given(st.integers(0, len(GOOD)), st.text(max_size=4), st.integers(0, 6))
def test_any_change_of_a_file_raises_spec_errors_only(at: int, text: str, removed: int) -> None:
    raised = outcome(GOOD[:at] + text + GOOD[at + removed :])
    if raised is not None:
        last = GOOD.count("\n") + text.count("\n") + 6
        for mistake in raised.mistakes:
            assert str(mistake).startswith("s.yaml:")
            assert "\n" not in str(mistake)
            assert mistake.line is None or 1 <= mistake.line <= last


def outcome(text: str) -> SpecError | None:
    try:
        parse_yaml(text, Spec, file="s.yaml")
    except SpecError as raised:
        return raised
    return None


@pytest.mark.parametrize("value", ["!!int ''", "!!int x", "!!bool x", "!!float x", "!!timestamp x", "!!binary é"])
def test_values_that_do_not_suit_their_tag_are_refused(value: str) -> None:
    assert "not valid YAML" in error(GOOD.replace("size: 5", f"size: {value}"))


def test_a_key_of_several_lines_is_reported_on_one_line() -> None:
    assert error(GOOD + '"a\\nb": 1\n') == (
        r"s.yaml:12: 'a\nb': unknown key; known are hosts, label, later, named, pairs, policies, size, title, work"
    )
