"""A MkDocs hook: LaTeX becomes MathML while the site is built, so that a page needs no script and no network.

`pymdownx.arithmatex` with `generic: true` marks what lies between dollar signs; this replaces the marks.
"""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

MARK = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.S)
# Browsers follow MathML Core, which leaves the alignment of columns to CSS.
ALIGN = re.compile(r'columnalign="(left|right|center)"')


def to_mathml(latex: str, display: str) -> str:
    return ALIGN.sub(r'style="text-align: \1"', convert(latex.strip(), display=display))


def _replace(mark: re.Match[str]) -> str:
    latex = html.unescape(mark[3])
    if mark[1] == "div":
        return f'<div class="equation" role="math" tabindex="0">{to_mathml(latex, "block")}</div>'
    return to_mathml(latex, "inline")


def on_page_content(content: str, **_: Any) -> str:
    return MARK.sub(_replace, content)
