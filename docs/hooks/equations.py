"""Sets the plain-text equations of docstrings as LaTeX.

A docstring writes an equation as an indented line, such as `x_i <- sum_j W_ij x_j - a g_i(x_i)`. `markdown` turns a
docstring into Markdown in which such blocks are LaTeX between `$$`. The site converts LaTeX to MathML (see `mathml`).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

GREEK = (
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "eta",
    "theta",
    "kappa",
    "lambda",
    "mu",
    "nu",
    "pi",
    "rho",
    "sigma",
)
GREEK += ("tau", "phi", "psi", "omega")
FUNCTIONS = {name: rf"\operatorname{{{name}}}" for name in ("argmin", "argmax", "floor", "ceil", "sign", "tr", "Var")}
FUNCTIONS |= {"min": r"\min ", "max": r"\max ", "cos": r"\cos ", "log": r"\log ", "log2": r"\log_2 "}
SIGNS = {
    "<-": r"\leftarrow ",
    "<=": r"\le ",
    ">=": r"\ge ",
    "!=": r"\ne ",
    "...": r"\dots ",
    "..": r"\dots ",
    "*": r"\cdot ",
    "||": r"\Vert ",
    "|": r"\vert ",
    "{": r"\{",
    "}": r"\}",
    "%": r"\%",
    "#": r"\#",
    "&": r"\&",
}
SUBSCRIPT = r"_(?:\{[^}]*\}|\([^)]*\)|[A-Za-z0-9]+)"
POWER = r"\^(?:\{[^}]*\}|\([^)]*\)|-?[A-Za-z0-9+]+)"
TOKEN = re.compile(
    rf"""(?P<space>\s+)
    |(?P<bracket><(?=[^<>=-]+,[^<>]+>))|(?P<close>(?<=[\w|)])>(?!=))
    |(?P<sqrt>sqrt\((?P<under>[^()]*(?:\([^()]*\)[^()]*)*)\))
    |(?P<sum>sum(?P<index>{SUBSCRIPT})?(?![A-Za-z]))
    |(?P<quoted>`[^`]*`|"[^"]*")
    |(?P<ones>11\^T)
    |(?P<norm>\|(?P<inside>[^|\s]+)\|)(?P<norm_power>{POWER})?
    |(?P<raised>{POWER})
    |(?P<hyphened>[A-Za-z]{{2,}}(?:-[A-Za-z]+)+)
    |(?P<name>[A-Za-z]+)(?P<tilde>~)?(?P<prime>'(?!s\b))?(?P<sub>{SUBSCRIPT})?(?P<when>\((?:before|after)\))?
        (?P<power>{POWER})?(?P<possessive>'s\b)?
    |(?P<number>\d+(?:\.\d+)?)
    |(?P<sign><-|<=|>=|!=|\.\.\.|\.\.|\|\||.)""",
    re.X,
)
SYMBOL = rf"\b[A-Za-z]{{1,2}}~?{SUBSCRIPT}|\b[A-Za-z]~|(?<![\w'-])[b-zB-Z](?![\w'-])"
ARGUMENT = r"([a-z_]+(?:, [a-z_]+)*): (?=\S)"
ITEM = re.compile(rf"- |{ARGUMENT}")
SECTION = re.compile(r"(Args|Arguments|Attributes|Returns|Yields|Raises|Examples?|Notes?|References?):")
CODE = re.compile(
    r"^\s*(?:with|for|def|class|import|from|>>>)\b.*(?::|\bimport\b.*|\))$|\w\.\w+\(|^\s*\w+\(.*\)$|\*\*|//|-->"
)
RELATION = re.compile(r"<-|<=|>=|!=|=")
WORD = re.compile(r"[A-Za-z]{2,}")


def markdown(docstring: str) -> str:
    """A docstring as Markdown: prose escaped, indented equations as LaTeX, the reference in a paragraph of its own."""
    parts = []
    for kind, lines in _blocks(docstring):
        if kind == "prose":
            parts.append(_prose(lines))
        elif kind == "section":
            parts.append("\n".join(lines))
        elif any(CODE.search(line) for line in lines):
            parts.append("```python\n" + textwrap.dedent("\n".join(lines)) + "\n```")
        elif any(_is_equation(cell) for line in lines for cell in _cells(line)):
            parts.append("$$\n" + latex(lines) + "\n$$")
        else:
            parts.append(_list(lines))
    return "\n\n".join(parts)


def latex(lines: list[str]) -> str:
    """Lines of plain-text equations as one LaTeX array: label, left side, relation with right side, remark."""
    rows = [row for line in lines for row in _rows(line)]
    used = [any(row[column] for row in rows) for column in range(4)]
    spec = "".join(letter for letter, kept in zip("lrll", used, strict=True) if kept)
    # An empty cell at the end of the last row makes latex2mathml drop that row.
    body = [" & ".join(cell for cell, kept in zip(row, used, strict=True) if kept).rstrip(" &") for row in rows]
    return f"\\begin{{array}}{{{spec}}}\n" + " \\\\\n".join(body) + "\n\\end{array}"


def _blocks(docstring: str) -> Iterator[tuple[str, list[str]]]:
    """Runs of prose (between blank lines), of lines indented by four spaces, and sections such as `Args:`."""
    run: list[str] = []
    kind, item = "prose", False
    for line in [*docstring.splitlines(), ""]:
        indented = line.startswith(" ")
        item = bool(ITEM.match(line)) or (item and indented)
        if SECTION.fullmatch(line) or (kind == "section" and (indented or not line.strip())):
            now = "section"
        else:
            now = "equation" if line.startswith("    ") and not item else "prose"
        if run and (now != kind or not (line.strip() or kind == "section")):
            yield kind, run
            run = []
        kind = now
        if line.strip() or (run and kind == "section"):
            run.append(line)
    if run:
        yield kind, run


def _prose(lines: list[str]) -> str:
    text = "\n".join(lines)
    pieces = re.split(r"(`[^`]*`)", text)
    text = "".join(p if p.startswith("`") else p.replace("<", "&lt;").replace("||", "&#124;&#124;") for p in pieces)
    text = re.sub(r"(?:^|\n)Reference:", "\n\n*Reference:*", text).strip()
    # A line `name: what it is` describes an argument; Markdown needs a blank line before a list.
    text = re.sub(rf"^{ARGUMENT}", r"- **\1**: ", text, flags=re.M)
    return re.sub(r"^((?!- | ).+)\n(?=- )", r"\1\n\n", text, flags=re.M)


def _list(lines: list[str]) -> str:
    """Indented lines that are no equations: one item each, with what is indented further."""
    lines = textwrap.dedent("\n".join(lines)).splitlines()
    return _prose([line if line.startswith(" ") else f"- {line}" for line in lines])


def _is_equation(line: str) -> bool:
    relation = RELATION.search(line)
    return bool((relation and not _is_wordy(line[: relation.start()])) or re.search(r"\bsum_", line))


def _cells(line: str) -> list[str]:
    return re.split(r"\s{2,}(?![<>!=\s])", line.strip())


def _rows(line: str) -> Iterator[tuple[str, str, str, str]]:
    """The rows of one line: it is cut at wide gaps, and anew behind each comma or semicolon before such a gap."""
    cells = _cells(line)
    label = ""
    named = re.match(r"([^=<>:_]{2,}:) +(\S.*)", cells[0])
    if named and _is_equation(named[2]):
        label, cells[0] = _words(named[1]) + r"\quad ", named[2]
    elif len(cells) > 1 and not _is_equation(cells[0]):
        label = _words(cells.pop(0)) + r"\quad "
    while cells:
        cell = cells.pop(0)
        remark = ""
        if cells and cell[-1] not in ",;:" and not _is_equation(cells[0]):
            remark = r"\quad " + _words(cells.pop(0))
        left, right = _sides(cell)
        yield label, left, right, remark
        label = ""


def _sides(cell: str) -> tuple[str, str]:
    relation = RELATION.search(cell)
    if relation is None or _is_wordy(cell[: relation.start()]):
        return "", _words(cell) if _is_wordy(cell) and "sum_" not in cell else math(cell)
    return math(cell[: relation.start()].strip()), math(cell[relation.start() :])


def _is_wordy(text: str) -> bool:
    words = [w for w in WORD.findall(re.sub(rf"[A-Za-z]+{SUBSCRIPT}", "", text)) if w not in (*GREEK, *FUNCTIONS)]
    return len(words) >= 4


def _words(text: str) -> str:
    """Prose, in which only names with a subscript are mathematics."""
    return "".join(
        math(piece) if re.fullmatch(SYMBOL, piece) else rf"\text{{{_escape(piece)}}}"
        for piece in re.split(f"({SYMBOL})", text)
        if piece
    )


def math(text: str, letters: bool = False) -> str:
    """One plain-text expression as LaTeX; with `letters` every name is a product of letters, as in an index."""
    pieces: list[tuple[str, str]] = []  # kind and LaTeX: "text", "operand", "sign" or "space"
    tokens = list(TOKEN.finditer(text))
    for at, token in enumerate(tokens):
        kind, piece = _token(token, _next(tokens, at), letters)
        if kind == "text" and [k for k, _ in pieces[-2:]] == ["text", "space"]:
            pieces.pop()
            pieces[-1] = ("text", f"{pieces[-1][1][:-1]} {piece[len('text{') + 1 :]}")
        else:
            pieces.append((kind, piece))
    out = ""
    for at, (kind, piece) in enumerate(pieces):
        out += _gap(pieces, at) if kind == "space" else piece
    return out


def _gap(pieces: list[tuple[str, str]], at: int) -> str:
    """LaTeX drops spaces: keep a wide one beside words and a thin one between factors."""
    before = pieces[at - 1] if at else ("sign", "")
    after = pieces[at + 1] if at + 1 < len(pieces) else ("sign", "")
    if "text" in (before[0], after[0]):
        return r"\; "
    left = before[0] == "operand" or before[1] == ")"
    right = after[0] == "operand" or after[1] == "("
    return r"\, " if left and right else " "


def _next(tokens: list[re.Match[str]], at: int) -> str:
    return next((t[0] for t in tokens[at + 1 : at + 3] if not t["space"]), "")


def _token(token: re.Match[str], following: str, letters: bool) -> tuple[str, str]:
    if token["space"]:
        return "space", " "
    if token["bracket"]:
        return "sign", r"\langle "
    if token["close"]:
        return "operand", r"\rangle "
    if token["norm"]:
        return "operand", rf"\lvert {math(token['inside'])} \rvert" + _power(token["norm_power"])
    if token["sqrt"]:
        return "operand", rf"\sqrt{{{math(token['under'])}}}"
    if token["sum"]:
        return "operand", r"\sum" + (_index(token["index"]) if token["index"] else "") + " "
    if token["quoted"] or token["hyphened"]:
        return "text", rf"\text{{{_escape(token[0].strip('`'))}}}"
    if token["ones"]:
        return "operand", r"\mathbf{1}\mathbf{1}^{\top}"
    if token["raised"]:
        return "sign", _power(token["raised"])
    if token["name"]:
        return _name(token, following, letters)
    if token["number"]:
        return "operand", token[0]
    return "sign", SIGNS.get(token[0], token[0])


def _name(token: re.Match[str], following: str, letters: bool) -> tuple[str, str]:
    name = token["name"]
    if name in GREEK:
        symbol = f"\\{name} "
    elif name in FUNCTIONS:
        symbol = FUNCTIONS[name]
    elif letters and name == "in":
        return "sign", r"\in "
    elif letters or (len(name) == 1 and not (name in "aA" and _is_plain_word(following))):
        symbol = name
    elif name.isupper() and len(name) == 2:
        symbol = rf"\mathrm{{{name}}}"
    else:
        return "text", rf"\text{{{_escape(token[0])}}}"
    if token["tilde"]:
        symbol = rf"\tilde{{{symbol}}}"
    if token["prime"]:
        symbol += "'"
    symbol += _index(token["sub"]) if token["sub"] else ""
    if token["when"]:
        symbol += rf"^{{\text{{{token['when'][1:-1]}}}}}"
    return "operand", symbol + _power(token["power"]) + (r"\text{'s}" if token["possessive"] else "")


def _power(power: str | None) -> str:
    if not power:
        return ""
    inside = power[1:].strip("{}()")
    return r"^{\top}" if inside == "T" else rf"^{{{math(inside)}}}"


def _is_plain_word(text: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z]{2,}", text)) and text not in (*GREEK, *FUNCTIONS, "sum", "sqrt")


def _index(subscript: str) -> str:
    inside = subscript[1:].strip("{}()")
    return rf"_{{{math(inside, letters=True)}}}"


def _escape(text: str) -> str:
    return re.sub(r"([_%#&{}])", r"\\\1", text.replace("^", r"\^{}"))
