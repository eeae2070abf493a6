"""The house rules, computed from the source: imports, sizes, switches on types, and what is printed of them."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "kaem"
DEVELOPMENT = ROOT / "docs" / "development.md"


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, tuple[Path, ast.Module]]:
    return {module_name(p): (p, ast.parse(p.read_text("utf8"))) for p in PACKAGE.rglob("*.py")}


def visible(tree: ast.AST):
    """All nodes but those that only type checkers see."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for other in node.orelse:
                yield other
                yield from visible(other)
            continue
        yield node
        yield from visible(node)


@cache
def imports() -> dict[str, list[tuple[str, str]]]:
    """What each module imports from the package: (module or package, name), inside functions too."""
    found = {}
    for name, (path, tree) in modules().items():
        here = name if path.name == "__init__.py" else name.rpartition(".")[0]
        found[name] = []
        for node in visible(tree):
            if isinstance(node, ast.Import):
                found[name] += [(a.name, "") for a in node.names if a.name.startswith("kaem")]
            if isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    up = here.split(".")
                    up = up[: len(up) - node.level + 1]
                    base = ".".join([*up, *([node.module] if node.module else [])])
                if base.split(".")[0] == "kaem":
                    found[name] += [(base, a.name) for a in node.names]
    return found


@cache
def graph() -> dict[str, set[str]]:
    """The modules that each module imports."""
    known = modules()
    edges: dict[str, set[str]] = {}
    for name, targets in imports().items():
        whole = {f"{b}.{n}" if f"{b}.{n}" in known else b for b, n in targets}
        edges[name] = (whole & set(known)) - {name}
    return edges


def room(module: str) -> str:
    """The top-level folder or file of a module; of the package itself, its name."""
    return module.split(".")[1] if "." in module else module


def room_graph() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, targets in graph().items():
        found.setdefault(room(name), set()).update(room(t) for t in targets)
    return {name: targets - {name} for name, targets in found.items()}


def ordered(edges: dict[str, set[str]]) -> list[str]:
    """Names so that each comes after all it points to, alphabetically where there is a choice."""
    left, order = {name: set(targets) for name, targets in edges.items()}, []
    while left:
        free = sorted(name for name, targets in left.items() if not targets & set(left))
        assert free, f"these import each other in a circle: {', '.join(sorted(left))}"
        order += free
        for name in free:
            del left[name]
    return order


def printed() -> str:
    """The rooms in order, with what each imports: what docs/development.md shows."""
    edges = room_graph()
    order = ordered(edges)
    width = max(map(len, order)) + 2
    lines = []
    for name in order:
        below = [other for other in order if other in edges[name]]
        lines.append(f"{name:<{width}}{' '.join(below)}".rstrip())
    return "```text\n" + "\n".join(lines) + "\n```"


def test_no_module_imports_itself_through_others():
    ordered(graph())


def test_rooms_have_an_order_and_the_documentation_shows_it():
    text = printed()
    shown = re.search(
        r"<!-- rooms -->\n(.*?)\n<!-- /rooms -->", DEVELOPMENT.read_text("utf8"), re.S
    )
    assert shown is not None
    assert shown[1].strip() == text, f"put this between the markers of docs/development.md:\n{text}"


def test_private_names_stay_in_their_folder():
    def hidden(name: str) -> bool:
        return name.startswith("_") and not name.startswith("__")

    crossing = [
        f"{name} imports {base}.{what}"
        for name, targets in imports().items()
        for base, what in targets
        if room(base) != room(name) and any(map(hidden, [*base.split("."), what]))
    ]
    assert not crossing


def test_files_are_short():
    long = {
        name: lines
        for name, (path, _) in modules().items()
        if (lines := len(path.read_text("utf8").splitlines())) > 400
    }
    assert not long


def test_few_switches_on_our_own_types():
    own = {
        node.name
        for _, tree in modules().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    switches = [
        f"{name}:{node.lineno}"
        for name, (_, tree) in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "isinstance"
        and len(node.args) == 2
        and own & {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
    ]
    assert len(switches) <= 20, switches


def test_readme_is_short():
    words = re.findall(r"\w+", (ROOT / "README.md").read_text("utf8"))
    assert len(words) <= 700
