"""What the benchmarks share: the machine's description, tables, and their place in RESULTS.md."""

import os
import platform
from importlib.metadata import version
from pathlib import Path


def describe_machine():
    """Returns one line on processor, cores and versions."""
    processor = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        processor = names[0].split(":", 1)[1].strip() if names else processor
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("tensorflow-cpu", "keras", "numpy") if _has(name)
    )
    return (
        f"{processor}, {os.cpu_count()} logical cores (shared with other work), "
        f"Python {platform.python_version()}, {packages}"
    )


def markdown_table(headers, rows):
    """Returns a table in Markdown."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def write_section(title, body):
    """Puts a section into RESULTS.md, in the place of an older one of the same title."""
    path = Path(__file__).with_name("RESULTS.md")
    text = path.read_text() if path.exists() else "# Results\n"
    head, *sections = text.split("\n## ")
    kept = [s for s in sections if s.splitlines()[0] != title]
    parts = [head.rstrip(), *sorted([*(s.rstrip() for s in kept), f"{title}\n\n{body.rstrip()}"])]
    path.write_text("\n\n## ".join(parts) + "\n")


def _has(name):
    try:
        version(name)
    except ModuleNotFoundError:
        return False
    return True
