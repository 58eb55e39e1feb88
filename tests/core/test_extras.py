"""Optional packages: imported when present, and one line with the fix when missing or broken."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.core.errors import UserError
from equipoise.core.extras import require


def test_a_present_module_is_returned() -> None:
    assert require("json", "none", "this test") is json
    assert require("importlib.metadata", "none", "this test").version("numpy")


def test_a_missing_package_is_named_with_the_extra_that_contains_it() -> None:
    with pytest.raises(UserError) as caught:
        require("no_such_package_anywhere", "partition", "the submodular partition")
    assert str(caught.value) == (
        "the submodular partition needs no_such_package_anywhere: pip install 'equipoise[partition]'"
    )


@pytest.mark.parametrize(("module", "distribution"), [("sklearn.datasets", "scikit-learn"), ("PIL.Image", "pillow")])
def test_the_message_has_the_name_that_pip_knows(
    module: str, distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = module.partition(".")[0]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"^this needs {distribution}: pip install 'equipoise\[x\]'$"):
        require(module, "x", "this")


def test_a_broken_package_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_package.py").write_text("raise ImportError('needs numpy 1.99 or less\\nsecond line')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        UserError, match=r"this needs broken_package, which is installed but .*\(needs numpy 1.99"
    ) as caught:
        require("broken_package", "x", "this")
    assert "\n" not in str(caught.value)


# Blocks every optional package as if it were not installed.
BLOCK = """
import sys
for name in ("numba", "sklearn", "scipy", "threadpoolctl", "plotly", "PIL", "matplotlib", "lightning", "ray"):
    sys.modules[name] = None
import numpy as np
import equipoise as eq
from equipoise.core.errors import UserError
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", BLOCK + code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_optional_packages_everything_else_works() -> None:
    said = run(
        """
from equipoise.config import registry
from equipoise.data.view import DatasetView
from equipoise.partition.study import study
labels = np.arange(60) % 3
view = DatasetView(60, labels, (np.random.default_rng(0).random((60, 4)), labels))
for name in registry.names("partition"):
    partition = registry.get("partition", name)()
    if name not in ("submodular", "from-file"):
        assert sum(map(len, partition.blocks(view, 3, 0))) == 60
print(round(sum(study(eq.partition.Stratified(), view, 3, splits=1).report["sizes"])))
for data in registry.names("data"):
    registry.get("data", data)()
print(len(eq.data.Synthetic(examples=10).load().train))
"""
    )
    assert said.split() == ["60", "8"]


def test_what_needs_an_optional_package_says_so_in_one_line() -> None:
    said = run(
        """
import importlib
def attempt(call):
    try:
        call()
    except UserError as error:
        print(error)
attempt(lambda: eq.partition.Submodular().divide(np.eye(6), workers=2))
attempt(lambda: eq.data.Digits().load())
attempt(lambda: importlib.import_module("equipoise.integrations.lightning"))
attempt(lambda: importlib.import_module("equipoise.integrations.ray"))
"""
    )
    assert said.splitlines() == [
        "the submodular partition needs numba: pip install 'equipoise[partition]'",
        "the digits data set needs scikit-learn: pip install 'equipoise[digits]'",
        "equipoise.integrations.lightning needs lightning: pip install 'equipoise[lightning]'",
        "equipoise.integrations.ray needs ray: pip install 'equipoise[ray]'",
    ]
