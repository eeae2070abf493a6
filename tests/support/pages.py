"""Pages of the documentation, taken apart: sections, blocks of code, tables, commands."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(
    r"^(?:<!-- (?P<note>[^\n]*?) -->\n+)?```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """One block of code: its language, its text, the comment before it, and its line in the page."""

    language: str
    code: str
    note: str
    line: int


def pages() -> list[Path]:
    """Return README, CONTRIBUTING and every page of the documentation."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    """Return the path of a page in the repository."""
    return str(page.relative_to(ROOT))


def blocks(text: str) -> list[Block]:
    """Return the blocks of code of a page, in order."""
    return [
        Block(m["language"], m["code"], m["note"] or "", text.count("\n", 0, m.start("code")) + 1)
        for m in _FENCE.finditer(text)
    ]


def sections(text: str) -> dict[str, str]:
    """Return the parts of a page by their second-level headings; what precedes them has none."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return {"": parts[0]} | dict(zip(parts[1::2], parts[2::2], strict=True))


def run(block: Block, page: str, namespace: dict) -> None:
    """Execute a block of Python, or write it if its first line names a file: `# count.py`."""
    named = re.match(r"# (\w+\.py)\n", block.code)
    if named:
        Path(named[1]).write_text(block.code, "utf8")
        return
    code = "\n" * (block.line - 1) + block.code  # lines of a traceback are those of the page
    exec(compile(code, page, "exec"), namespace)


def commands(text: str) -> list[str]:
    """Return the command lines that begin with `kaem` in blocks of shell, continued lines joined."""
    found = []
    for block in blocks(text):
        if block.language in ("sh", "bash", "shell", "console"):
            lines = block.code.replace("\\\n", " ").splitlines()
            found += [line for line in lines if re.match(r"\s*(\w+=\S+ +)*kaem\b", line)]
    return found
