"""The tree shows the architecture: packages point down, names mean one thing, files stay small."""

from __future__ import annotations

import ast
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import equipoise

PACKAGE = Path(equipoise.__file__).parent

# Lowest first. A package may import from packages on lower lines only; those on one line do not know each other.
LAYERS = [
    {"core"},
    {"simulate"},
    {"config"},
    {"comm"},
    {"data", "launch", "topology", "signal", "period"},
    {"wire"},
    {"models", "partition", "order", "sync", "flatness"},
    {"batch"},
    {"checkpoint", "observe"},
    {"loop"},
    {"report"},
    {"compare", "reproduce"},
    {"search"},
    {"cli", "testing", "integrations"},
]
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}


def modules() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if "recipes" not in p.parts)


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and package of every import from Equipoise that runs, wherever it stands."""
    parts = path.relative_to(PACKAGE).parts[:-1]
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        pending += ast.iter_child_nodes(node)
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        base = [*parts[: len(parts) - node.level + 1], *(node.module.split(".") if node.module else [])]
        for name in [base[0]] if base else [alias.name for alias in node.names]:
            yield node.lineno, name


def test_packages_point_down() -> None:
    violations = []
    for path in modules():
        own = package_of(path)
        if own in ("__init__", "__main__"):
            continue
        for line, target in imports(path):
            if target in LEVEL and target != own and LEVEL[target] >= LEVEL[own]:
                violations.append(f"{path.relative_to(PACKAGE)}:{line} imports {target}")
    assert not violations, "\n".join(violations)


def test_every_package_has_a_layer() -> None:
    assert {package_of(path) for path in modules()} - {"__init__", "__main__"} == set(LEVEL)


def test_a_class_name_means_one_thing() -> None:
    homes = defaultdict(list)
    for path in modules():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path.relative_to(PACKAGE)))
    assert not {name: paths for name, paths in homes.items() if len(paths) > 1}


def test_files_stay_small() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in modules()}
    assert not {path.name: length for path, length in lengths.items() if length > 500}
    assert statistics.median(length for length in lengths.values() if length > 5) <= 120
