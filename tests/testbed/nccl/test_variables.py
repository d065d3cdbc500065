# SPDX-License-Identifier: Apache-2.0
"""NCCL's variables: the plugin's table, the page's table and what the plugin reads agree."""

import re
from pathlib import Path

import pytest

from testbed.errors import InputError
from testbed.nccl import variables
from testbed.nccl.variables import EFFECTS, FILE, PAGE, Variable

KNOWN = variables.read(FILE.read_text())


def test_the_page_has_the_table_of_the_plugin() -> None:
    page = PAGE.read_text()
    assert page == variables.page_with(page, variables.table(KNOWN)), "run: python -m testbed.nccl.variables"


def test_every_row_of_the_file_is_read() -> None:
    assert len(KNOWN) == FILE.read_text().count("\nNCCL_VARIABLE(") > 100
    assert len({each.name for each in KNOWN}) == len(KNOWN)


def test_the_effects_are_those_of_the_plugin() -> None:
    header = (FILE.parent / "nccl_variables.hpp").read_text()
    assert set(re.findall(r"^  (k\w+),", header, re.MULTILINE)) == set(EFFECTS)


def test_what_the_plugin_reads_is_in_the_table_as_read() -> None:
    sources = [path for path in FILE.parent.iterdir() if path.suffix in {".cpp", ".hpp"}]
    named = {name for path in sources for name in re.findall(r'"(NCCL_[A-Z0-9_]+)"', path.read_text())}
    assert named == {each.name for each in KNOWN if each.effect == "kRead"}


@pytest.mark.parametrize("name", ["NCCL_IB_ADDR_RANGE", "NCCL_IB_ROCE_VERSION_NUM", "NCCL_IB_AR_THRESHOLD"])
def test_variables_of_the_ib_transport_have_no_effect(name: str) -> None:
    assert [each.effect for each in KNOWN if each.name == name] == ["kNone"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder like a checkout of NCCL."""
    texts = {
        "docs/userguide/source/env.rst": "NCCL_DEBUG\n----------\nText NCCL_NOT\n\nNCCL_IB_A (formerly B)\n-----\n"
        "NCCL_GONE\n---------\nNCCL_BOTH\n---------\n",
        "src/debug.cc": "DEFINE_NCCL_PARAM(debug, Level, NCCL_DEBUG, 0)",
        "src/init.cc": 'ncclGetEnv("NCCL_BOTH"); NCCL_PARAM(Hidden, "HIDDEN", 1);',
        "src/transport/net_ib/init.cc": 'NCCL_PARAM(IbA, "IB_A", 1); ncclGetEnv("NCCL_BOTH");',
        "src/transport/net_ib/gin.cc": 'NCCL_PARAM(Gin, "GIN_IB_TC", 1);',
        "src/transport/net_socket.cc": 'NCCL_PARAM(Inline,\n  "SOCKET_INLINE", 1);',
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_effect_follows_from_where_nccl_reads_a_variable(source: Path) -> None:
    assert variables.of_source(source) == [
        Variable("NCCL_BOTH", "kOwn"),
        Variable("NCCL_DEBUG", "kOwn"),
        Variable("NCCL_GONE", "kNone"),
        Variable("NCCL_IB_A", "kNone"),
        Variable("NCCL_SOCKET_INLINE", "kNone"),
    ]


def test_an_update_adds_variables_and_keeps_the_rows_that_exist(source: Path) -> None:
    text = '// head\nNCCL_VARIABLE(NCCL_GONE, kOwn, "PARALET_X")\n'
    updated = variables.merged(text, variables.of_source(source))
    assert updated.startswith('// head\nNCCL_VARIABLE(NCCL_BOTH, kOwn, "")\n')
    assert 'NCCL_VARIABLE(NCCL_GONE, kOwn, "PARALET_X")\n' in updated
    assert variables.merged(updated, []) == updated


def test_errors_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is no checkout of NCCL with its documentation: there is no .*env\.rst"):
        variables.of_source(tmp_path)
    with pytest.raises(InputError, match="NCCL_A has the effect kMany, which is none of kTaken"):
        variables.read('NCCL_VARIABLE(NCCL_A, kMany, "")')
    with pytest.raises(InputError, match=r"plugin\.md has no lines <!-- nccl variables: begin -->"):
        variables.page_with("", "")
