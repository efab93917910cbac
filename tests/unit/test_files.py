"""Files that are foreign, hostile, newer or no files at all: an error with path, field and remedy, nothing else."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from sentinel.core.errors import FormatError, UsageError
from sentinel.core.run import LAYER_DTYPE, MIGRATION_DTYPE, OUTCOMES, REASONS, STEP_DTYPE, Run
from sentinel.core.trace import EVENT_DTYPE, ROLES
from sentinel.files import digest, load_machine, load_plan, load_profile, load_run, load_trace, save
from sentinel.files.formats import FORMATS
from tests.builders import make_machine, make_profile, param, persistent_plan
from tests.refused_files import refused

PROFILE = make_profile([param("weight", 5000, [0, 1]), param("bias", 17, [2])], 3)
PLAN = persistent_plan(PROFILE, [1, 0], [(0, 1, 0, 0, 1), (0, 0, 1, 1, 2)])


def run_of(**columns: int) -> Run:
    """A run of one step and one migration, with some of the migration's fields as given."""
    steps, layers, moves = (np.zeros(1, dtype) for dtype in (STEP_DTYPE, LAYER_DTYPE, MIGRATION_DTYPE))
    moves["nbytes"] = moves["moved_bytes"] = 4096
    moves["source"] = 1
    for name, value in columns.items():
        moves[name] = value
    return Run("executed", False, ("fast", "slow"), 1 << 20, steps, layers, moves)


@pytest.fixture
def plan_json(tmp_path: Path) -> dict[str, Any]:
    save(PLAN, tmp_path / "plan.json")
    found: dict[str, Any] = json.loads((tmp_path / "plan.json").read_text())
    del found["checksum"]  # as one who edits does
    return found


def container(index: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(index).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_an_edited_plan_without_checksum_is_read(tmp_path: Path, plan_json: dict[str, Any]) -> None:
    plan_json["plan"]["policy"] = "mine"
    (tmp_path / "edited").write_text(json.dumps(plan_json))
    assert load_plan(tmp_path / "edited").policy == "mine"


def test_an_edited_plan_with_its_old_checksum_is_refused(tmp_path: Path) -> None:
    save(PLAN, tmp_path / "plan")
    text = (tmp_path / "plan").read_text().replace('"built"', '"mine"')
    error = refused(tmp_path / "plan", text)
    assert error.field == "checksum"
    assert "remove the line" in error.rule


def test_a_machine_is_written_by_hand_with_the_needed_fields_only(tmp_path: Path) -> None:
    tier = {"kind": "described", "capacity_bytes": 1 << 30, "latency_ns": 80}
    speed = {"read_bytes_per_s": 10**10, "write_bytes_per_s": 10**10}
    body = {
        "name": "mine",
        "tiers": [{"name": "fast", **tier, **speed}, {"name": "slow", **tier, **speed}],
        "links": [
            {"source": 0, "target": 1, "bandwidth_bytes_per_s": 10**9},
            {"source": 1, "target": 0, "bandwidth_bytes_per_s": 10**9},
        ],
    }
    path = tmp_path / "machine.json"
    path.write_text(json.dumps({"format": "sentinel-machine", "version": 1, "machine": body}))
    machine = load_machine(path)
    assert (machine.name, machine.fast.latency_ns, machine.tiers[1].addressable) == ("mine", 80.0, True)
    body["tiers"][1]["latencyns"] = 3  # type: ignore[index]
    error = refused(path, {"format": "sentinel-machine", "version": 1, "machine": body})
    assert error.field == "machine.tiers[1].latencyns"
    assert "latency_ns" in error.rule, "the known fields are listed"


def _at(body: dict[str, Any], *path: str | int) -> Callable[[Any], None]:
    def put(value: Any) -> None:
        inner: Any = body
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = value

    return put


@pytest.mark.parametrize(
    ("where", "value", "field", "rule"),
    [
        (("format",), "sentinel-novel", "format", "none of"),
        (("format",), ["sentinel-plan"], "format", "none of"),
        (("version",), 2, "version", "update sentinel-hm"),
        (("version",), 0, "version", "not a number from 1"),
        (("version",), True, "version", "not a number from 1"),
        (("plan",), [], "plan", "not an object"),
        (("plan", "policy"), 3, "plan.policy", "not a text"),
        (("plan", "policy"), "\ud800", "plan.policy", "Unicode"),
        (("plan", "footprint_bytes"), 1.5, "plan.footprint_bytes", "not a whole number"),
        (("plan", "footprint_bytes"), True, "plan.footprint_bytes", "not a whole number"),
        (("plan", "footprint_bytes"), 10**18 * 10, "plan.footprint_bytes", "64 bits"),
        (("plan", "slots", 1, "nbytes"), None, "plan.slots[1].nbytes", "is null"),
        (("plan", "slots", 1, "key"), [1], "plan.slots[1].key", "not a list of 2"),
        (("plan", "slots", 1, "offset"), 1 << 60, "plan", "address space"),
        (("plan", "blocks", 0, "nbytes"), 1 << 62, "plan", "address space"),
        (("plan", "blocks", 0, "tier"), 9, "plan", "tier that is not there"),
        (("plan", "migrations", 0, "reason"), "whim", "plan.migrations[0].reason", "prefetch"),
        (("plan", "migrations", 0, "source"), 0, "plan", "block 0"),
        (("plan", "capacity_bytes"), [1, 1], "plan", "capacity"),
        (("plan", "details"), {"a": 10**30}, "plan.details.a", "64 bits"),
        (("plan", "uses"), {"block": [1]}, "plan.uses", "columns"),
        (("plan", "surprise"), 1, "plan.surprise", "not known"),
        (("surprise",), 1, "surprise", "not known"),
    ],
)
def test_each_wrong_field_is_named(
    tmp_path: Path, plan_json: dict[str, Any], where: tuple[str | int, ...], value: Any, field: str, rule: str
) -> None:
    _at(plan_json, *where)(value)
    error = refused(tmp_path / "plan", plan_json)
    assert error.field == field
    assert rule in error.rule


@pytest.mark.parametrize("field", ["layers", "tier_names", "blocks", "policy"])
def test_a_missing_field_is_named(tmp_path: Path, plan_json: dict[str, Any], field: str) -> None:
    del plan_json["plan"][field]
    assert refused(tmp_path / "plan", plan_json).field == f"plan.{field}"


@pytest.mark.parametrize(
    "column",
    [
        [0, "x"],
        [0, 1.5],
        [0, True],
        [0, 1 << 40],
        [0, 10**30],
        [0],
        "ab",
        None,
        [0, None],
        [[0], [1]],
        [0, -5],
        [0, 99],
    ],
)
def test_a_table_in_json_is_checked_by_column(tmp_path: Path, plan_json: dict[str, Any], column: Any) -> None:
    uses = {
        name: [0, 0] for name in ("block", "layer", "reads", "writes", "read_bytes", "written_bytes", "touched_bytes")
    }
    plan_json["plan"]["uses"] = uses | {"block": [0, 1]}
    (tmp_path / "plan").write_text(json.dumps(plan_json))
    assert len(load_plan(tmp_path / "plan").uses) == 2
    plan_json["plan"]["uses"] = uses | {"block": column}
    assert refused(tmp_path / "plan", plan_json).field.startswith("plan")


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", "empty"),
        (b"\0", "not a Sentinel file"),
        (b"PK\3\4 a zip, say", "not a Sentinel file"),
        (b"[]", "not a Sentinel file"),
        (b"{", "not JSON"),
        (b"{}", "none of"),
        (b'{"format": "sentinel-plan", "version": 1}', "missing"),
        (b'{"format": "sentinel-plan", "version": NaN}', "NaN"),
        (b'{"format": "sentinel-plan", "version": 1e999}', "not a number from 1"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"a": "\xff"}', "not JSON"),
        (b'{"a": ' * 200_000 + b"1" + b"}" * 200_000, "nested too deeply"),
        (b'{"a": ' + b"[" * 500000, "nested too deeply"),
        (b'{"format": "sentinel-profile", "version": 1}', "not stored as JSON"),
        (struct.pack("<Q", 10**18) + b"{}", "claims"),
        (struct.pack("<Q", 2**64 - 1) + b"{}", "claims"),
        (struct.pack("<Q", 2) + b"{}", "not a Sentinel file"),
        (struct.pack("<Q", 3) + b"{]}", "not JSON"),
        (struct.pack("<Q", 300001) + b"{" + b"[" * 300000, "not JSON"),
        (container({"__metadata__": 7}), "not a Sentinel file"),
        (container({"__metadata__": {"sentinel": "{"}}), "not JSON"),
        (container({"__metadata__": {"sentinel": "[]"}}), "not a Sentinel file"),
        (container({"__metadata__": {"sentinel": '{"format": "sentinel-plan", "version": 1}'}}), "stored as JSON"),
        (container({"__metadata__": {"sentinel": '{"format": "sentinel-run", "version": 7}'}}), "update sentinel-hm"),
        (container({"__metadata__": {"sentinel": '{"format": "sentinel-run", "version": 1}'}}), "missing"),
        (safetensors.numpy.save({"weight": np.zeros(3)}), "not a Sentinel file"),
        (safetensors.numpy.save({"weight": np.zeros(3)}, {"format": "pt"}), "not a Sentinel file"),
    ],
)
def test_what_is_no_file_of_ours_is_refused(tmp_path: Path, content: bytes, rule: str) -> None:
    assert rule in refused(tmp_path / "file", content).rule


def test_a_container_is_read_also_where_its_length_looks_like_json(tmp_path: Path) -> None:
    path, looks_like_json = tmp_path / "profile", int.from_bytes(b" {", "little")
    save(dataclasses.replace(PROFILE, notes=("",)), path)
    longer = "a" * (looks_like_json - int.from_bytes(path.read_bytes()[:8], "little"))
    save(dataclasses.replace(PROFILE, notes=(longer,)), path)
    assert path.read_bytes()[:8] == b" {" + bytes(6)
    assert load_profile(path).notes == (longer,)


def test_nested_details_are_refused_below_the_parser_too(tmp_path: Path, plan_json: dict[str, Any]) -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    plan_json["plan"]["details"] = {"deep": deep}
    assert "nested" in refused(tmp_path / "plan", plan_json).rule
    with pytest.raises(UsageError, match="nested"):
        save(dataclasses.replace(PLAN, details={"deep": deep}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def _forged(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A profile's file whose index was changed by hand."""
    save(PROFILE, tmp_path / "profile")
    raw = (tmp_path / "profile").read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    index = json.loads(raw[8 : 8 + length])
    change(index)
    (tmp_path / "profile").write_bytes(container(index, raw[8 + length :]))
    return tmp_path / "profile"


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda i: i.pop("flops"), "missing"),
        (lambda i: i.update(extra=i["flops"]), "not known"),
        (lambda i: i["flops"].update(dtype="F64"), "not <i8"),
        (lambda i: i["flops"].update(dtype="BF16"), "not <i8"),
        (lambda i: i["flops"].update(dtype={}), "not <i8"),
        (lambda i: i["flops"].update(shape=[10**18]), "claims more rows"),
        (lambda i: i["flops"].update(shape=[10**4000]), "claims more rows"),
        (lambda i: i["flops"].update(shape=[3, 1]), "one dimension"),
        (lambda i: i["flops"].update(shape=[-3]), "one dimension"),
        (lambda i: i["flops"].update(shape=[True]), "one dimension"),
        (lambda i: i["flops"].update(shape=None), "one dimension"),
        (lambda i: i["flops"].update(shape=[2]), "claims"),
        (lambda i: i["tensors.role"].update(shape=[1]), "its table"),
        (lambda i: i["flops"].update(data_offsets=[0, 10**18]), "cannot be read"),
        (lambda i: i["flops"].update(data_offsets=i["layer_ns"]["data_offsets"]), "cannot be read"),
        (lambda i: i.update(flops=[]), "one dimension"),
    ],
)
def test_a_forged_index_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], object], rule: str) -> None:
    assert rule in refused(_forged(tmp_path, change)).rule


@pytest.mark.parametrize(
    ("name", "first_beyond"),
    [
        pytest.param("source", 2, id="source"),
        pytest.param("target", 2, id="target"),
        pytest.param("outcome", len(OUTCOMES), id="outcome"),
        pytest.param("reason", len(REASONS), id="reason"),
    ],
)
def test_a_migration_names_what_is_in_its_tables(tmp_path: Path, name: str, first_beyond: int) -> None:
    path = tmp_path / "run"
    save(run_of(**{name: first_beyond - 1}), path)
    assert load_run(path).migrations[name].tolist() == [first_beyond - 1]
    for value in (first_beyond, 127):
        save(run_of(**{name: value}), path)
        assert f"a migration's {name} is not there" in refused(path).rule


@pytest.mark.parametrize("name", ["layer", "block", "nbytes", "moved_bytes"])
def test_a_migration_has_no_negative_amounts(tmp_path: Path, name: str) -> None:
    save(run_of(**{name: -1}), tmp_path / "run")
    assert "negative layer, block or amount" in refused(tmp_path / "run").rule


@pytest.mark.parametrize("noun", [PROFILE, run_of()], ids=["profile", "run"])
def test_a_byte_changed_anywhere_in_the_columns_breaks_the_checksum(tmp_path: Path, noun: Any) -> None:
    path = tmp_path / "noun"
    save(noun, path)
    raw = path.read_bytes()
    columns = 8 + int.from_bytes(raw[:8], "little")
    assert len(raw) > columns
    for at in range(columns, len(raw)):
        error = refused(path, raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        assert error.field == "checksum", at


def test_a_truth_value_is_0_or_1(tmp_path: Path) -> None:
    save(PROFILE, tmp_path / "profile")
    columns = safetensors.numpy.load_file(tmp_path / "profile")
    raw = bytearray((tmp_path / "profile").read_bytes())
    length = struct.unpack("<Q", raw[:8])[0]
    start = json.loads(raw[8 : 8 + length])["tensors.managed"]["data_offsets"][0]
    assert columns["tensors.managed"].all()
    raw[8 + length + start] = 2
    assert "truth values" in refused(tmp_path / "profile", bytes(raw)).rule


@pytest.mark.parametrize("place", ["/dev/zero", "/dev/null", "."])
def test_what_is_no_regular_file_is_refused_at_once(place: str) -> None:
    assert "regular file" in refused(place).rule
    with pytest.raises(FormatError, match="regular file"):
        save(PLAN, place)


def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "pipe" in refused(tmp_path / "pipe").rule
    with pytest.raises(FormatError, match="pipe"):
        save(PLAN, tmp_path / "pipe")


def test_a_path_that_leads_nowhere(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "absent").rule
    assert "null" in refused("a\0b").rule
    with pytest.raises(FormatError, match="no folder"):
        save(PLAN, tmp_path / "absent" / "plan")
    with pytest.raises(FormatError, match="null"):
        save(PLAN, "a\0b")


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(PLAN, tmp_path / "plan")

    def denied(*_: Any) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", "plan")

    monkeypatch.setattr(os, "open", denied)  # root may read everything, so the kernel's answer is given here
    error = refused(tmp_path / "plan")
    assert "Permission denied" in error.rule
    assert "permissions" in error.rule


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(PLAN, tmp_path / "plan")
    before = (tmp_path / "plan").read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FormatError, match="No space left"):
        save(dataclasses.replace(PLAN, policy="other"), tmp_path / "plan")
    assert (tmp_path / "plan").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["plan"]


def test_an_interrupt_after_a_file_took_its_place_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.replace

    def interrupted(*paths: Any) -> None:
        real(*paths)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(PLAN, tmp_path / "plan")
    assert digest(load_plan(tmp_path / "plan")) == digest(PLAN)
    assert [p.name for p in tmp_path.iterdir()] == ["plan"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    save(PLAN, tmp_path / "plan")
    (tmp_path / "latest").symlink_to("plan")
    save(dataclasses.replace(PLAN, policy="other"), tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    assert load_plan(tmp_path / "plan").policy == "other"


def test_new_files_get_the_rights_that_the_user_gives_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        save(PLAN, tmp_path / "plan")
    finally:
        os.umask(before)
    assert (tmp_path / "plan").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_a_file_that_is_written_again_keeps_its_rights(tmp_path: Path, mode: int) -> None:
    save(PLAN, tmp_path / "plan")
    (tmp_path / "plan").chmod(mode)
    (tmp_path / "latest").symlink_to("plan")
    for path in (tmp_path / "plan", tmp_path / "latest"):
        save(dataclasses.replace(PLAN, policy=path.name), path)
        assert load_plan(tmp_path / "plan").policy == path.name
        assert (tmp_path / "plan").stat().st_mode & 0o777 == mode


def test_a_file_too_long_is_refused_before_it_is_read(tmp_path: Path) -> None:
    for length in (1 << 28, 1 << 40):
        with open(tmp_path / "long", "wb") as file:
            file.write(b"{")
            file.truncate(length)  # sparse: takes no room
        refused(tmp_path / "long")


def test_a_hostile_header_gets_no_memory(tmp_path: Path) -> None:
    """Read under a limit of address space far below what the headers claim."""
    paths = [
        tmp_path / "index",
        _forged(tmp_path, lambda i: i["flops"].update(shape=[10**18], data_offsets=[0, 8 * 10**18])),
    ]
    paths[0].write_bytes(struct.pack("<Q", 10**18) + b"{}")
    program = (
        "import resource, sys\n"
        "from sentinel.files import load\n"
        "from sentinel.core.errors import FormatError\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n"
        "        load(path)\n"
        "    except FormatError as error:\n"
        "        print(error.field)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, paths)], capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stdout.split() == ["index", "flops"]
    assert resource.getpagesize() == 4096


def test_each_kind_of_noun_has_a_loader_that_takes_no_other(tmp_path: Path) -> None:
    save(PROFILE, tmp_path / "profile")
    save(make_machine(), tmp_path / "machine")
    assert load_profile(tmp_path / "profile").names == PROFILE.names
    assert load_machine(tmp_path / "machine") == make_machine()
    for loader in (load_machine, load_trace, load_plan, load_run):
        with pytest.raises(FormatError, match="holds a profile"):
            loader(tmp_path / "profile")


def test_only_nouns_are_saved(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file format"):
        save(3, tmp_path / "three")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="cannot be saved"):
        save(dataclasses.replace(PLAN, details={"a": float("nan")}), tmp_path / "nan")
    with pytest.raises(UsageError, match="cannot be saved"):
        save(dataclasses.replace(PLAN, details={"a": {1, 2}}), tmp_path / "set")
    assert list(tmp_path.iterdir()) == []


def test_numpy_numbers_in_details_are_numbers_in_the_file(tmp_path: Path) -> None:
    details = {"mil": np.int64(3), "shares": np.array([0.5, 1.0]), "on": np.bool_(True)}
    save(dataclasses.replace(PLAN, details=details), tmp_path / "plan")
    assert load_plan(tmp_path / "plan").details == {"mil": 3, "shares": [0.5, 1.0], "on": True}


def test_a_digest_tells_contents_apart_and_nothing_else() -> None:
    assert digest(PLAN) == digest(dataclasses.replace(PLAN, origin={"host": "other"}))
    others = [
        PROFILE,
        make_machine(),
        dataclasses.replace(PLAN, policy="other"),
        dataclasses.replace(PLAN, predicted_step_ns=1),
        make_profile([param("weight", 5000, [0, 1]), param("bias", 17, [1])], 3),
    ]
    assert len({digest(noun) for noun in (PLAN, *others)}) == 6
    assert digest(make_machine()) == digest(dataclasses.replace(make_machine(), flops_per_s=None))


def test_an_integer_and_the_same_float_are_one_machine() -> None:
    whole = make_machine(flops_per_s=10**12)
    assert digest(whole) == digest(make_machine(flops_per_s=1e12))


def test_tables_of_words_only_grow_at_the_end() -> None:
    """Files store the place of a word in these tables. If this fails, append instead, or raise the version."""
    assert ROLES[:7] == ("param", "grad", "optimizer", "activation", "buffer", "input", "workspace")
    assert OUTCOMES[:6] == ("done", "late", "failed", "skipped", "partial", "already there")
    assert REASONS[:5] == ("prefetch", "evict", "mid-interval", "initial", "restore")
    assert EVENT_DTYPE.names is not None


def test_every_format_is_described() -> None:
    text = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
    for form in FORMATS:
        assert f"`{form.name}`" in text
        for column in form.columns:
            assert f"`{column.split('.')[-1]}`" in text, f"{form.name}: {column} is not in docs/formats.md"
