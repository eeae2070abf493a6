"""Verilog checked: simulated, linted, synthesised and placed, each where its program is installed.

A section whose program is missing names the Debian package instead of results. Sizes are cells of the netlists that yosys
writes; the clock is what nextpnr estimates after placing and routing.
"""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ..tools import MissingTool, find, run, version

_SIMULATION_SECONDS = 3600.0
FAMILIES = {
    "ice40": "synth_ice40 -top {top}",
    "ecp5": "synth_ecp5 -top {top}",
    "xilinx7": "synth_xilinx -family xc7 -flatten -top {top}",
}
# What cells of the three families count as; the rest is carries, multiplexers and buffers.
_CELLS = {
    "lut": r"SB_LUT4|LUT[1-6]|INV",
    "ff": r"SB_DFF\w*|TRELLIS_FF|FD[RSCP]E(_1)?",
    "lutram": r"TRELLIS_DPR16X4|RAM(32|64|128|256)\w+",
    "bram": r"SB_RAM40_4K\w*|DP16KD|PDPW16KD|RAMB(18|36)E1",
    "dsp": r"SB_MAC16|MULT18X18D|DSP48E1",
}


class Simulation(NamedTuple):
    """What a test bench counts."""

    mismatches: int  # words that differ, and words that never came
    clocks: int  # until the last word, pauses included


def sections(parts: Iterable[tuple[str, Callable[[], dict[str, Any]]]]) -> dict[str, Any]:
    """Return the results of all parts, with the package to install for those that lack a program."""
    found: dict[str, Any] = {}
    for name, part in parts:
        try:
            found.update(part())
        except MissingTool as missing:
            found[f"{name}_missing"] = missing.package
    return found


def simulate(
    folder: Path, bench: str, sources: list[str], parameters: dict[str, int]
) -> Simulation:
    """Run a test bench, interpreted."""
    values = [f"-P{bench}.{key}={value}" for key, value in parameters.items()]
    compiler, runtime = find("iverilog"), find("vvp", "iverilog")
    compiled = f"{bench}.vvp"
    command = [compiler, "-g2005", "-Wall", "-Wno-timescale", *values, "-s", bench, "-o", compiled]
    run([*command, *sources, f"{bench}.v"], folder)
    return _counts(run([runtime, compiled], folder, seconds=_SIMULATION_SECONDS))


def simulate_compiled(
    folder: Path, bench: str, sources: list[str], parameters: dict[str, int]
) -> Simulation:
    """Do the same through verilator and a C++ compiler: slow to build, then much faster."""
    values = [f"-G{key}={value}" for key, value in parameters.items()]
    translator = find("verilator")
    find("g++")
    find("make")
    built = f"built_{bench}"
    command = [translator, "--binary", "--timing", "-O3", "-Wno-fatal", "-Wno-lint", *values]
    run([*command, "--top-module", bench, "-Mdir", built, *sources, f"{bench}.v"], folder)
    return _counts(run([str(folder / built / f"V{bench}")], folder, seconds=_SIMULATION_SECONDS))


def _counts(printed: bytes) -> Simulation:
    text = printed.decode()
    pattern = r"^(?:PASS|FAIL): (\d+) wrong, (\d+) of (\d+) words, (\d+) clocks$"
    ended = re.search(pattern, text, re.MULTILINE)
    if ended is None:
        raise RuntimeError(f"the test bench did not say how it ended: {text[-2000:]}")
    wrong, checked, expected, clocks = (int(group) for group in ended.groups())
    return Simulation(wrong + expected - checked, clocks)


def lint(folder: Path, top: str, sources: list[str]) -> dict[str, Any]:
    """Count warnings of verilator with all of its checks; any of them is an error of ours."""
    program = find("verilator")
    run([program, "--lint-only", "-Wall", "--top-module", top, *sources], folder)
    return {"lint_tool": version(program), "lint_warnings": 0}


def sizes(netlist: Path, top: str) -> dict[str, int]:
    """Count the cells of a flat netlist by kind."""
    cells = json.loads(netlist.read_text())["modules"][top]["cells"].values()
    return {
        kind: sum(re.fullmatch(pattern, cell["type"]) is not None for cell in cells)
        for kind, pattern in _CELLS.items()
    }


def synthesise(folder: Path, top: str, sources: list[str], family: str) -> Path:
    """Return the netlist that yosys makes of a module.

    Modules are deferred until their parameters are known: the memory that one names by default is no file.
    """
    program = find("yosys")
    netlist = folder / f"{top}_{family}.json"
    script = f"read_verilog -defer {' '.join(sources)}; {FAMILIES[family].format(top=top)}; "
    run([program, "-q", "-p", f"{script}write_json {netlist.name}"], folder)
    return netlist


def synthesis(
    folder: Path, name: str, top: str, sources: list[str], families: Iterable[str] = FAMILIES
) -> dict[str, Any]:
    """Return sizes of a module in all families, as `NAME_FAMILY_KIND`."""
    found: dict[str, Any] = {"synthesis_tool": version(find("yosys"))}
    for family in families:
        made = sizes(synthesise(folder, top, sources, family), top)
        found.update({f"{name}_{family}_{kind}": count for kind, count in made.items()})
    return found


def clock(netlist: Path) -> float:
    """Return MHz on an iCE40 HX8K after placing and routing, the slowest of its clocks."""
    program = find("nextpnr-ice40")
    log = f"{netlist.stem}.log"
    chip = ["--hx8k", "--package", "ct256", "--seed", "1"]
    run([program, *chip, "--json", netlist.name, "--log", log, "-q"], netlist.parent)
    return slowest_clock((netlist.parent / log).read_text())


def slowest_clock(log: str) -> float:
    """Return the slowest clock of what nextpnr says last, after routing."""
    said = re.findall(r"Max frequency for clock\s+'([^']+)':\s+([\d.]+) MHz", log)
    return min(float(value) for _, value in dict(said).items())
