# SPDX-License-Identifier: Apache-2.0
"""What an integer program returns, and that its solver leaves standard output to the caller."""

import subprocess
import sys

from sdn.isolation.integer_program import IntegerProgram


def test_the_cheapest_integers_that_meet_the_rows() -> None:
    program = IntegerProgram()
    dear, cheap = program.column(5, cost=3.0), program.column(2, cost=1.0)
    program.row({dear: 1.0, cheap: 1.0}, lower=3.0)
    assert program.solve() == [1, 2]


def test_rows_that_exclude_each_other_have_no_solution() -> None:
    program = IntegerProgram()
    column = program.column(5)
    program.row({column: 1.0}, lower=6.0)
    assert program.solve() is None


def test_the_solver_prints_nothing() -> None:
    """HiGHS 1.16.0 prints its name once per process, in front of what `--json` prints."""
    code = """
from sdn.isolation.integer_program import IntegerProgram
program = IntegerProgram()
program.row({program.column(5): 1.0}, lower=3.0)
print(program.solve())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[3]\n", "")
