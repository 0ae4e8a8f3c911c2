"""pyproject.toml is true: what the package imports is declared, and the oldest torch is the one that is tried."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DISTRIBUTIONS = {
    "yaml": "pyyaml",
    "google": "protobuf",
    "sklearn": "scikit-learn",
    "PIL": "pillow",
    "mpl_toolkits": "matplotlib",
}
DISTRIBUTIONS |= {"ai_edge_litert": "ai-edge-litert", "litert_torch": "litert-torch"}  # whose modules these are


def declared(requirements: list[str]) -> set[str]:
    """`torch>=2.6` -> `torch`."""
    return {re.split(r"[\s<>=!~\[;]", line, maxsplit=1)[0] for line in requirements}


def imported() -> dict[str, str]:
    """Distribution -> one of the files that import it, at the top or inside a function."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            for module in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"prunus"}:
                found.setdefault(DISTRIBUTIONS.get(module, module), str(path.relative_to(ROOT)))
    return found


def test_every_import_is_declared() -> None:
    required = declared(PROJECT["dependencies"])
    optional = {name for lines in PROJECT["optional-dependencies"].values() for name in declared(lines)}
    found = imported()
    assert {"torch", "numpy", "scipy", "scikit-learn", "onnx"} <= found.keys()  # the walk sees imports
    assert {name: path for name, path in found.items() if name not in required | optional} == {}
    assert required - {"onnxscript"} <= found.keys()  # nothing is required for nothing; torch.onnx imports that one


def test_the_oldest_torch_is_the_one_that_is_tried() -> None:
    tried = re.search(r"^OLDEST_TORCH := (\S+)$", (ROOT / "Makefile").read_text(), re.M)
    assert tried is not None
    assert f"torch>={tried[1]}" in PROJECT["dependencies"]


def test_the_citation_is_of_this_version() -> None:
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert cited is not None and cited[1] == PROJECT["version"]
