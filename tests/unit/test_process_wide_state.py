"""What there is once in a process is in the Runtime, or in the list here, with a reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

RUNTIME_MODULE = "runtime/process.py"
ELSEWHERE = {
    # the program that is run is the user's, and finds the process as `python` would have made it
    "cli/script.py: sets sys.argv": "run_as_main",
    "cli/script.py: sets sys.modules": "run_as_main",
    "cli/script.py: sets sys.path": "_look_first_in",
    "cli/__init__.py: sets sys.excepthook": "as the process ends by an interrupt that was shown",
    "cli/early_end.py: calls signal.signal": "SIGTERM, where nothing else handles it; forked children put it back",
    "cli/early_end.py: calls os.register_at_fork": "as above",
    "executed/trained_bits.py: sets sys.argv": "a forked child that runs one script and ends",
    "executed/trained_bits.py: calls sys.path.insert": "as above",
    "executed/trained_bits.py: sets torch.autograd": "as above, and put back",
    "cli/run.py: sets progress.STDOUT_IS_THE_SCRIPTS": "the verb that ends with the process, and runs a script",
    "cli/run.py: sets progress.ONLY_WRONG": "the verb that ends with the process: --quiet",
    "cli/common.py: calls signal.signal": "verbs that end with the process: SIGTERM ends them as Ctrl-C does",
    "cli/prove.py: calls signal.signal": "the same verb, while it writes what there is",
    "proving/cell_process.py: calls signal.signal": "in a child that does one thing and ends",
    "data/loader_workers.py: calls signal.signal": "in a worker, which its trainer ends",
    # what ends with the process
    "cli/before_torch.py: calls sys.meta_path.insert": "until the script, which is the process's, has imported torch",
    "cli/before_torch.py: calls sys.meta_path.remove": "as above",
    "cli/before_torch.py: calls sys.modules.pop": "the script's, which it has again as the block ends",
    "cli/before_torch.py: calls sys.modules.update": "as above",
    "cli/before_torch.py: sets sys.modules": "Python's own modules, which it looks for again when the script asks",
    "cli/run.py: calls atexit.register": "the verb that ends with the process, where a thread of the script trains on",
    "session/calls.py: calls atexit.register": "stock allocation is back before the interpreter goes",
    "session/calls.py: sets sys.excepthook": "as above, where the interpreter lives on; Runtime.shows_uncaught",
    "system/compiler.py: calls atexit.register": "a temporary folder of this process alone",
    "data/reading_thread.py: calls atexit.register": "threads that bring samples are at their end before it",
    # libraries: the loader maps each once in a process, whatever we keep
    "migration/clock.py: caches _sleep": "a function of a loaded library",
    "profiler/reducers.py: caches _library": "a loaded library",
    "profiler/torch_shim.py: caches library": "a loaded library",
    "system/native.py: caches library": "a loaded library",
    "system/native.py: caches path": "where it was built",
    "system/native.py: caches quick": "a loaded library",
    "executed/memory_pressure.py: sets _libc.mmap": "the types of a C function, always the same",
    "system/kernel.py: sets _libc.syscall": "as above",
    # what has no state
    "profiler/operators.py: keeps _OF_PARENT, a _OfParent": "the Runtime holds weakly what a child does not inherit",
    # the same answer at any time
    "files/codec.py: caches _codecs": "made from the fields of a class",
    "migration/frame_locals.py: caches _get_var": "a function of this interpreter",
    "migration/frame_locals.py: caches _references_to_a_frames_dict": "a property of this interpreter",
    "migration/frame_locals.py: caches _takes_its_own": "a property of the code, and no more than 4096 of them",
    "profiler/flops.py: caches _formulas": "torch's own, by name",
    "profiler/estimate/schema_accesses.py: caches describe": "pure",
    "profiler/flops.py: caches flops": "pure",
    "planner/assemble.py: caches _packed_bytes": "pure, of the last two steps",
    "data/source_files.py: sets _OF_MANY": "who shares the descriptors of the process",
    "data/sources/stored_file.py: sets _LISTED_ANEW": "when a store's listings were dropped, which the process keeps",
    "profiler/record.py: caches _operator_ns": "what recording an operator costs here, measured once",
    "system/compiler.py: caches _version": "what the compiler of that path says",
}
"""`file: what` -> why it need not be in the Runtime."""

MUTATORS = {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "remove"}
MUTATORS |= {"setdefault", "update"}
REGISTRIES = {"os.register_at_fork", "atexit.register", "signal.signal", "os.putenv", "os.unsetenv"}
CACHES = {"functools.cache", "functools.lru_cache", "cache", "lru_cache"}
UNCHANGING = {"Protocol", "NamedTuple", "TypedDict", "Enum", "IntEnum", "Exception"}
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def state_in(tree: ast.Module, changing: frozenset[str] = frozenset()) -> set[str]:
    """What a module keeps, or changes, for the whole process. `changing`: classes whose objects change."""
    modules = _modules(tree)
    found = {what for node in tree.body for what in _in(node, frozenset(), modules, inside=False)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            found |= {f"assigns global {name}" for name in node.names}
    for name, value in _module_level(tree):
        called = _dotted(value.func).rpartition(".")[2] if isinstance(value, ast.Call) else ""
        if called in changing:
            found.add(f"keeps {name}, a {called}")
    return found


def _modules(tree: ast.Module) -> frozenset[str]:
    """Names that mean modules: `np.append(x)` changes nothing, `names.append(x)` does."""
    imports = [alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    named = {alias.asname or alias.name for alias in imports}
    return frozenset(name.partition(".")[0] for name in named)


def _module_level(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in [*tree.body, *(each for made in tree.body if isinstance(made, ast.ClassDef) for each in made.body)]:
        if isinstance(node, ast.Assign):
            yield from ((ast.unparse(target), node.value) for target in node.targets)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield ast.unparse(node.target), node.value


def _in(node: ast.AST, bound: frozenset[str], modules: frozenset[str], *, inside: bool) -> Iterator[str]:
    """`bound`: names of the functions around it. `inside` a function, or what runs when the module is imported."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for decorator in node.decorator_list:
            name = _dotted(decorator.func if isinstance(decorator, ast.Call) else decorator)
            if name in CACHES:
                yield f"caches {node.name}"
            yield from _call(name, bound, modules, inside=inside)
    if isinstance(node, Function):
        within = bound | _bound_in(node)
        for child in ast.iter_child_nodes(node):
            yield from _in(child, within, modules, inside=True)
        return
    if isinstance(node, ast.Call):
        yield from _call(_dotted(node.func), bound, modules, inside=inside)
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    for target in targets if inside else ():
        yield from _assigned(target, bound)
    for child in ast.iter_child_nodes(node):
        yield from _in(child, bound, modules, inside=inside)


def _call(name: str, bound: frozenset[str], modules: frozenset[str], *, inside: bool) -> Iterator[str]:
    root, *path = name.split(".")
    if name in REGISTRIES:
        yield f"calls {name}"
    elif inside and path and path[-1] in MUTATORS and root not in {*bound, "", "RUNTIME"}:
        of_a_module = root in modules and len(path) == 1  # a function of that name
        yield from () if of_a_module else (f"calls {name}",)


def _assigned(target: ast.expr, bound: frozenset[str]) -> Iterator[str]:
    if isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from _assigned(each, bound)
    elif isinstance(target, ast.Attribute | ast.Subscript):
        root, _, rest = _dotted(target).partition(".")
        if root not in bound and root not in ("", "RUNTIME"):
            yield f"sets {root}.{rest.partition('.')[0]}" if rest else f"sets {root}"


def _dotted(node: ast.AST) -> str:
    """`a.b.c` of an attribute, without indices; "" for what begins with no name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Subscript):
        return _dotted(node.value)
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def _bound_in(function: Function) -> frozenset[str]:
    """Arguments, and names that it assigns; an import within it is one of the process, and so is a class."""
    asked = function.args
    names = {each.arg for each in (*asked.posonlyargs, *asked.args, *asked.kwonlyargs)}
    names |= {each.arg for each in (asked.vararg, asked.kwarg) if each is not None}
    shared = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Global):
            shared |= set(node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.ExceptHandler | ast.FunctionDef | ast.ClassDef) and node is not function:
            names.add(node.name or "")
    return frozenset(names - shared - {"cls"})


def classes_that_change(package: Path) -> frozenset[str]:
    """Names of classes of `package` that are neither frozen nor without objects of their own."""
    found = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not _unchanging(node):
                found.add(node.name)
    return frozenset(found)


def _unchanging(made: ast.ClassDef) -> bool:
    frozen = any("frozen=True" in ast.unparse(decorator) for decorator in made.decorator_list)
    bases = {_dotted(base).rpartition(".")[2] for base in made.bases}
    return frozen or bool(bases & UNCHANGING)


@pytest.mark.slow
def test_all_of_it_is_in_the_runtime() -> None:
    package = ROOT / "sentinel"
    changing = classes_that_change(package)
    found = set()
    for path in package.rglob("*.py"):
        where = path.relative_to(package).as_posix()
        if where != RUNTIME_MODULE:
            found |= {f"{where}: {what}" for what in state_in(ast.parse(path.read_text()), changing)}
    assert found - set(ELSEWHERE) == set(), "hang it on the Runtime, or say in ELSEWHERE why not"
    assert set(ELSEWHERE) - found == set(), "it is gone"


def test_one_hook_is_called_after_a_fork() -> None:
    kept = state_in(ast.parse((ROOT / "sentinel" / RUNTIME_MODULE).read_text()))
    assert kept == {"calls os.register_at_fork"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f():\n    global x\n    x = 1", {"assigns global x"}),
        ("x = []\ndef f():\n    x.append(1)", {"calls x.append"}),
        ("x = {}\ndef f():\n    x['a'] = 1", {"sets x"}),
        ("x = {}\ndef f():\n    del x['a']", {"sets x"}),
        ("from a import ticks\ndef f():\n    ticks.sink = 1", {"sets ticks.sink"}),
        ("class A:\n    n = 0\n    def f(self):\n        A.n += 1", {"sets A.n"}),
        ("class A:\n    @classmethod\n    def f(cls):\n        cls.n = 1", {"sets cls.n"}),
        ("import os\ndef f():\n    os.environ['A'] = '1'", {"sets os.environ"}),
        ("import os\ndef f():\n    os.environ.update(A='1')", {"calls os.environ.update"}),
        ("import os\nos.register_at_fork(after_in_child=print)", {"calls os.register_at_fork"}),
        ("import atexit\n@atexit.register\ndef f(): pass", {"calls atexit.register"}),
        ("import functools\n@functools.cache\ndef f(): pass", {"caches f"}),
        ("from functools import lru_cache\n@lru_cache(maxsize=1)\ndef f(): pass", {"caches f"}),
        ("x = Counter()", {"keeps x, a Counter"}),
        ("class A:\n    x: Counter = Counter()", {"keeps x, a Counter"}),
        ("f = lambda: x.add(1)", {"calls x.add"}),
    ],
)
def test_state_is_found(text: str, expected: set[str]) -> None:
    assert state_in(ast.parse(text), frozenset({"Counter"})) == expected


@pytest.mark.parametrize(
    "text",
    [
        "x = {}\nx['a'] = 1",  # as the module is imported
        "def f(x):\n    x.append(1)\n    x.n = 2",
        "def f():\n    x = []\n    def g():\n        x.append(1)\n    return g",
        "def f(self):\n    self.a.b.append(1)\n    self.n, other = 1, 2",
        "import numpy as np\ndef f():\n    return np.append(1, 2)",
        "from sentinel.runtime import RUNTIME\ndef f():\n    RUNTIME.sink = None\n    RUNTIME.models.add(1)",
        "def f():\n    for x in ():\n        x.n = 1\n    return [y.pop() for y in ()]",
    ],
)
def test_what_is_no_state_is_not(text: str) -> None:
    assert state_in(ast.parse(text)) == set()
