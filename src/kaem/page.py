"""Self-contained HTML: one file with its pictures in it, no network and no scripts."""

import base64
import html
from pathlib import Path
from typing import Any

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
h1{margin-bottom:.2rem}h2{margin-top:2rem;border-bottom:1px solid #ddd}
img{max-width:100%;height:auto}figure{margin:1rem 0}figcaption{color:#555;font-size:.9rem}
table{border-collapse:collapse}td,th{padding:.2rem .8rem .2rem 0;text-align:left;vertical-align:top}
code,pre{font:14px/1.4 ui-monospace,monospace;background:#f5f5f5;border-radius:3px;padding:.1rem .3rem}
pre{padding:.6rem;overflow:auto}
.side{display:flex;flex-wrap:wrap;gap:1rem}.side figure{flex:1 1 16rem;max-width:30rem;margin:0}
.wide{overflow-x:auto}.note{color:#555}math{font-size:1.1em}
td{overflow-wrap:anywhere}.rows td,.rows th{white-space:nowrap}
.rows .note{display:block;white-space:normal;min-width:14rem;font-size:.85rem}
@media screen and (max-width:40rem){.wide img{min-width:40rem}}
@media print{body{max-width:none;margin:0;font-size:11pt}h2{break-after:avoid}
figure,tr{break-inside:avoid}.wide{overflow:visible}img{max-height:23cm;width:auto}
thead{display:table-header-group}details::details-content{content-visibility:visible;height:auto}pre{white-space:pre-wrap}}
"""


def figure(path: Path, caption: str, wide: bool = False) -> str:
    """Return an image file as part of the page; a `wide` one scrolls on a narrow screen."""
    data = base64.b64encode(path.read_bytes()).decode()
    kind = {".svg": "svg+xml"}.get(path.suffix, path.suffix[1:])
    image = f'<img alt="{html.escape(caption)}" src="data:image/{kind};base64,{data}">'
    framed = f'<div class="wide">{image}</div>' if wide else image
    return f"<figure>{framed}<figcaption>{html.escape(caption)}</figcaption></figure>"


def page(title: str, body: str) -> str:
    """Return a whole HTML document."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>{body}</body></html>"
    )


class Markup(str):
    """Text that is HTML already, as its method says to whoever would escape it."""

    def __html__(self) -> str:
        return self


def _cell(text: str) -> str:
    return text if hasattr(text, "__html__") else html.escape(text)


def table(header: list[str], body: list[list[str]]) -> str:
    """Return a table whose first column names its rows; with a header, rows are lines and may scroll."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    head = head and f"<thead><tr>{head}</tr></thead>"
    lines = "".join(
        f"<tr><th>{_cell(name)}</th>"
        + "".join(f"<td>{_cell(cell)}</td>" for cell in cells)
        + "</tr>"
        for name, *cells in body
    )
    kind = ' class="rows"' if header else ""
    return f'<div class="wide"><table{kind}>{head}{lines}</table></div>'


def score(entry: dict[str, Any]) -> str:
    """Return an entry of `metrics.json` as text, with its error; empty where there is no value."""
    if entry.get("value") is None:
        return ""
    error = f" ± {entry['error']:.2g}" if entry.get("error") is not None else ""
    note = " (not to be trusted)" if "why" in entry else ""
    return f"{entry['value']:,.5g}{error}{note}"
