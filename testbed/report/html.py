# SPDX-License-Identifier: Apache-2.0
"""Pages of one file each: templates, pictures as data, and the list of contents."""

import base64
import io
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import matplotlib as mpl
from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from testbed.report.scales import digits, said

_PNG_DPI = 144
_HEADING = re.compile(r"<h2>(.*?)</h2>")
_CONTENTS = "<!-- contents -->"


def render(name: str, **values: Any) -> str:
    """A page from a template of this folder. It escapes what is inserted and refuses unknown names.

    A comment `<!-- contents -->` becomes a list of links to the headings that follow.
    """
    environment = Environment(
        loader=PackageLoader("testbed.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"time": said, "digits": digits}
    return _with_contents(environment.get_template(name).render(**values))


def replay_fields(moving: dict[str, Any] | None) -> dict[str, Any]:
    """The values that `replay.html.j2` needs."""
    return {
        "replay": moving,
        "replay_data": htmlsafe_json_dumps(moving, separators=(",", ":")),
        "replay_program": Markup((files("testbed.report") / "replay.js").read_text()),
    }


def embedded(figure: Figure, alt: str) -> Markup:
    """An <img> element with the figure as SVG, which scales without loss."""
    vector = io.BytesIO()
    # `savefig` would draw it twice.
    FigureCanvasSVG(figure).print_svg(vector, metadata={"Date": None})  # type: ignore[no-untyped-call]
    data = base64.b64encode(vector.getvalue()).decode()
    return Markup('<img alt="{}" src="data:image/svg+xml;base64,{}">').format(alt, data)


def save_and_embed(figure: Figure, file: Path, alt: str) -> Markup:
    """Write a figure into a PNG file, and return it for the page."""
    figure.set_dpi(_PNG_DPI)
    FigureCanvasAgg(figure).print_png(file)  # type: ignore[no-untyped-call]
    figure.set_layout_engine("none")  # the layout stays, and is not computed again
    return embedded(figure, alt)


def save_for_print(figure: Figure, file: Path) -> None:
    """Write a figure as SVG or PDF, by the name of the file, with text that stays text.

    A paper's or a drawing program's own fonts then take the place of ours.
    """
    with mpl.rc_context({"svg.fonttype": "none", "pdf.fonttype": 42}):
        stamp = {"Date": None} if file.suffix == ".svg" else {"CreationDate": None}
        figure.savefig(file, metadata=stamp)


def _with_contents(page: str) -> str:
    headings: list[tuple[str, str]] = []

    def named(match: re.Match[str]) -> str:
        place = f"part-{len(headings) + 1}"
        headings.append((place, match[1]))
        return f'<h2 id="{place}">{match[1]}</h2>'

    page = _HEADING.sub(named, page)
    links = "".join(f'<li><a href="#{place}">{text}</a></li>' for place, text in headings)
    return page.replace(_CONTENTS, f'<nav aria-label="Contents"><ol>{links}</ol></nav>', 1)
