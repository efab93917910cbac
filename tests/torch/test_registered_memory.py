"""Memory that a GPU's driver has registered keeps its pages: the device uses those, whatever the addresses show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.system.compiler import _compiler
from tests import warm

pytestmark = pytest.mark.needs("torch", "compiler", "native")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that answers as CUDA's driver does, by its name."""
    made = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    source = Path(__file__).with_name("registered_driver.cpp")
    name = f"-Wl,-soname,{made.name}"
    subprocess.run([_compiler("a test"), "-shared", "-fPIC", "-O1", name, "-o", made, source], check=True, timeout=300)
    return made


def run(driver: Path | str, case: str, *folder: Path, tracker: str = "auto") -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.torch.registered_memory", str(driver), case, *map(str, folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRACKER": tracker}
    done = warm.run(command, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
def test_on_a_file_the_device_sees_what_training_writes(driver: Path, folder: Path) -> None:
    stock, ours = run(driver, "stock"), run(driver, "file", folder)
    assert (ours["losses"], ours["digest"]) == (stock["losses"], stock["digest"])
    assert ours["device_sees"] == stock["device_sees"] == [True, True]
    assert "a device's driver has registered memory there" in " ".join(ours["text"].split())


def test_without_a_driver_that_tells_the_device_sees_old_pages(driver: Path, folder: Path, tmp_path: Path) -> None:
    """Negative control: the same library by another name is nobody's driver."""
    unknown = tmp_path / "libsomething.so"
    source = Path(__file__).with_name("registered_driver.cpp")
    subprocess.run([_compiler("a test"), "-shared", "-fPIC", "-O1", "-o", unknown, source], check=True, timeout=300)
    assert run(unknown, "file", folder)["device_sees"] != [True, True]


def test_what_is_registered_is_not_moved_in(driver: Path) -> None:
    found = run(driver, "before")
    assert found["stayed"]
    assert "cudaHostRegister" in found["reasons"]["0.weight"]
    assert found["device_sees"] == [True]


@pytest.mark.parametrize("tracker", ["auto", "pagemap"])
def test_what_is_registered_is_not_watched_by_pages(driver: Path, tracker: str) -> None:
    """To watch pages is to replace them; the tracker of operators replaces none."""
    found = run(driver, "between", tracker=tracker)
    assert found["device_sees"] == [True]
    if tracker == "auto":
        assert "registered (cudaHostRegister)" in " ".join(found["text"].split())
    else:
        assert "use --tracker ops" in found["refused"]


@pytest.mark.slow
def test_what_is_registered_while_pages_are_watched_is_told(driver: Path) -> None:
    """The watch ends by giving the pages back."""
    found = run(driver, "within")
    assert "registered memory of tensors (cudaHostRegister) while their pages were watched" in " ".join(
        found["text"].split()
    )
