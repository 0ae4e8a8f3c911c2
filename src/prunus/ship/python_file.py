"""A pruned network as plain PyTorch: a Python file that builds the narrow network from its own class, without prunus.

The file has widths and channel selections as data and reads the weights from a safetensors file of the same name. It is
run in a new process in which prunus cannot be imported, and its outputs are compared with those of the network.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import inspect
import json
import math
import re
import subprocess
import symtable
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from jinja2 import Environment
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from prunus.errors import ModelError, PrunusError
from prunus.graph.branches import Absent
from prunus.graph.compare import distance
from prunus.graph.norms import KEPT, Mean
from prunus.graph.own_widths import SCALE, WIDTH
from prunus.graph.selection import INDEX, selection_of
from prunus.graph.traced import Example, as_call
from prunus.timing.onnx_export import TOLERANCE, Difference, comparison_batches
from prunus.util.batches import call, count_images, device_of, to_device
from prunus.util.files import atomic
from prunus.util.state import evaluating, generators_kept
from prunus.util.user_code import cannot_take, current_folder_importable, failure, import_user_function
from prunus.zoo.models import accepts, config
from prunus.zoo.networks import register

Original = str | Callable[..., nn.Module]

OWN = {"ABSENT", "Absent", "LAYERS", "SELECTIONS", "WEIGHTS", "Selection", "build", "select"}  # names that a file uses
OWN |= {"Path", "load_file", "nn", "torch"}
GIVE = "give original=, a class or function of a module that builds the network as it was before pruning"


def export_python(
    model: nn.Module,
    example: Example,
    path: Path,
    *,
    original: Original | None = None,
    arguments: Mapping[str, Any] | None = None,
    images: Tensor | None = None,
    dynamic_batch: bool = True,
) -> Difference:
    """Write `path` and, beside it, the weights. See `prunus.export`."""
    if not path.stem.isidentifier():
        raise ModelError(f"{path.name} cannot be imported: give a name of letters, digits and _, such as small.py")
    _check_plain(model)
    source = _origin(type(model) if original is None else original, dict(arguments or {}))
    if source.home.partition(".")[0] == path.stem:
        raise ModelError(f"{path.name} would hide the module {path.stem}, which holds the network; use another name")
    with generators_kept(), current_folder_importable():
        try:
            whole = source.build()
        except PrunusError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise ModelError(f"{source.call} does not build a network: {failure(error)}; {GIVE}") from error
    if not isinstance(whole, nn.Module):
        raise ModelError(f"{source.call} must return a torch.nn.Module, but returned {type(whole).__name__}")
    count = sum(parameter.numel() for parameter in whole.parameters())
    absent = {name: m for name, m in model.named_modules(remove_duplicate=False) if isinstance(m, Absent)}
    for name, module in absent.items():
        with suppress(AttributeError):  # another network, which is refused next
            whole.set_submodule(name, module)
    _check_same_layers(model, whole, source.call)
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    if dtype != next((p.dtype for p in whole.parameters() if p.is_floating_point()), dtype):
        whole = whole.to(dtype)
        source.call += f".to({dtype})"
    tensors = _tensors_of(model, whole, source.call)
    text = _text(model, whole, path, source, count, absent)
    with atomic(path.with_suffix(".safetensors")) as weights, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / path.name
        save_file(tensors, file.with_suffix(".safetensors"))
        file.write_text(text, encoding="utf-8")
        difference = _compared(model, comparison_batches(example, images, dynamic_batch), file)
        weights.write_bytes(file.with_suffix(".safetensors").read_bytes())
        with atomic(path) as part:
            part.write_text(text, encoding="utf-8")
    return difference


# -- the unpruned network: how a file gets it


@dataclass
class _Origin:
    """Code that makes the name of a class or function known, and a call of it."""

    imports: list[str]
    call: str
    build: Callable[[], Any]
    home: str = ""  # the module that holds it; empty if its source goes into the file
    source: str = ""


def _origin(original: Original, arguments: dict[str, Any]) -> _Origin:
    if isinstance(original, nn.Module):
        raise ModelError(f"original= must be what builds a network, not a network: {type(original).__name__}, say")
    if isinstance(original, str):
        known = config(original)
        library, colon, name = original.partition(":")
        arguments = {"num_classes": known.num_classes, **known.arguments, **arguments}
        if library in ("torchvision", "timm") and colon:
            maker = "torchvision.models.get_model" if library == "torchvision" else "timm.create_model"
            home = maker.rpartition(".")[0]
            build = lambda: known.factory(**arguments)  # noqa: E731
            return _Origin([f"import {home}"], f"{maker}({_listed((name,), arguments)})", build, home)
        if colon:
            original = import_user_function(original, ModelError)
            arguments = {name: value for name, value in arguments.items() if accepts(original, name)}
        else:
            original = known.factory
    positional: tuple[Any, ...] = ()
    while isinstance(original, partial):
        positional, arguments = (*original.args, *positional), {**original.keywords, **arguments}
        original = original.func
    name, home = getattr(original, "__qualname__", ""), getattr(original, "__module__", "")
    module = sys.modules.get(home)
    top = name.partition(".")[0]
    if module is None or "<" in name or getattr(module, top, None) is None:
        what = "a lambda" if "<lambda>" in name else f"{name or original!r} of {home or 'no module'}"
        raise ModelError(f"the file could not import {what}: it has no name in a module; {GIVE}")
    build = partial(original, *positional, **arguments)
    if trouble := cannot_take(original, *positional, **arguments):
        raise ModelError(f"{name} cannot be built with {arguments or 'no arguments'} ({trouble}); {GIVE}")
    values = _listed(positional, arguments)
    if home == "__main__" or _imports_prunus(module):
        imports, source = _source(module, top)
        return _Origin(imports, f"{name}({values})", build, source=source)
    if top in OWN:
        return _Origin([f"import {home}"], f"{home}.{name}({values})", build, home)
    return _Origin([f"from {home} import {top}"], f"{name}({values})", build, home)


def _listed(positional: tuple[Any, ...], keywords: Mapping[str, Any]) -> str:
    for value in (*positional, *keywords.values()):
        if not _is_literal(value):
            raise ModelError(f"an argument of the network is {value!r:.80}, which cannot be written to a file; {GIVE}")
    return ", ".join([*map(_literal, positional), *(f"{name}={_literal(value)}" for name, value in keywords.items())])


def _imports_prunus(module: ModuleType) -> bool:
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):
        tree = ast.Module([], [])
    return module.__name__.partition(".")[0] == "prunus" or any(map(_of_prunus, ast.walk(tree)))


def _of_prunus(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").partition(".")[0] == "prunus" and not node.level
    return isinstance(node, ast.Import) and any(alias.name.partition(".")[0] == "prunus" for alias in node.names)


def _source(module: ModuleType, name: str) -> tuple[list[str], str]:
    """The source of what `module` calls `name` and of all that it uses there: its imports, and the rest."""
    try:
        text = inspect.getsource(module)
    except (OSError, TypeError) as error:
        raise ModelError(
            f"{name} is defined where prunus runs, and its source cannot be read: put it into a module"
        ) from error
    lines, tree = text.splitlines(), ast.parse(text)
    bound: dict[str, list[ast.stmt]] = {}
    for statement in tree.body:
        for each in _bound(statement):
            bound.setdefault(each, []).append(statement)
    waiting, needed = [name], set[str]()
    while waiting:
        if (wanted := waiting.pop()) not in needed:
            needed.add(wanted)
            waiting += [used for statement in bound.get(wanted, []) for used in _used(statement, module)]
    imports: list[str] = []
    parts: list[str] = []
    for statement in tree.body:
        names = [each for each in _bound(statement) if each in needed or each == "*"]
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            imports.append(ast.unparse(statement))
        elif isinstance(statement, ast.Import | ast.ImportFrom) and _of_prunus(statement):
            for each in names:  # errors of prunus become ValueErrors; other things of prunus are refused
                value = getattr(module, each, None)
                if each != "*" and not (isinstance(value, type) and issubclass(value, PrunusError)):
                    raise ModelError(f"the network uses {each} of prunus, so that it cannot be built without it")
                parts += [f"{each} = ValueError"] if each != "*" else []
        elif isinstance(statement, ast.Import | ast.ImportFrom) and names:
            imports.append(_import(statement, names, module))
        if not names or isinstance(statement, ast.Import | ast.ImportFrom):
            continue
        if taken := OWN.intersection(names):
            raise ModelError(f"{min(taken)} of {module.__name__} has a name that the file uses itself; rename it")
        decorators = [] if _is_registered(statement, module) else getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
        parts.append("\n".join(lines[first - 1 : statement.end_lineno]))
    return imports, re.sub(r"  # (type: ignore|noqa)\b.*", "", "\n\n\n".join(parts))


def _bound(statement: ast.stmt) -> list[str]:
    """The names that a statement at the top of a module defines; "*" of an import of everything."""
    if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
        return ["*"]
    symbols = symtable.symtable(ast.unparse(statement), "", "exec").get_symbols()
    return [each.get_name() for each in symbols if each.is_assigned() or each.is_imported()]


def _used(statement: ast.stmt, module: ModuleType) -> list[str]:
    """The names of its module that a statement uses, and not those that are local to its functions."""
    if _is_registered(statement, module):
        statement = copy.deepcopy(statement)
        statement.decorator_list = []  # type: ignore[attr-defined]
    waiting, names = [symtable.symtable(ast.unparse(statement), module.__name__, "exec")], []
    while waiting:
        scope = waiting.pop()
        top = scope.get_type() == "module"
        names += [each.get_name() for each in scope.get_symbols() if each.is_referenced() and (top or each.is_global())]
        waiting += scope.get_children()
    return names


def _is_registered(statement: ast.stmt, module: ModuleType) -> bool:
    """Whether decorators of a statement do nothing but enter a network into the zoo."""
    called = [d.func for d in getattr(statement, "decorator_list", []) if isinstance(d, ast.Call)]
    return any(isinstance(f, ast.Name) and getattr(module, f.id, None) is register for f in called)


def _import(statement: ast.Import | ast.ImportFrom, names: list[str], module: ModuleType) -> str:
    """An import of these names only, from the module's full name."""
    aliases = [alias for alias in statement.names if (alias.asname or alias.name.partition(".")[0]) in names]
    if isinstance(statement, ast.Import):
        return ast.unparse(ast.Import(names=aliases))
    dotted = "." * statement.level + (statement.module or "")
    home = importlib.util.resolve_name(dotted, module.__package__)
    return ast.unparse(ast.ImportFrom(module=home, names=aliases, level=0))


def _sorted(imports: list[str]) -> str:
    """Imports in the usual order, each name once."""
    names: dict[str, set[str]] = {}
    for line in imports:
        statement: Any = ast.parse(line).body[0]
        names.setdefault(getattr(statement, "module", ""), set()).update(map(ast.unparse, statement.names))
    lines = [f"import {name}" for name in names.pop("", set())]
    lines += [f"from {home} import {', '.join(sorted(each))}" for home, each in names.items()]
    groups: list[list[str]] = [[], [], []]
    for line in sorted(lines, key=lambda line: (line.startswith("from"), line.split()[1].lower())):
        home = line.split()[1].partition(".")[0]
        groups[0 if home == "__future__" else 1 if home in sys.stdlib_module_names else 2].append(line)
    return "\n\n".join("\n".join(group) for group in groups if group)


# -- how the pruned network differs from it


def _check_plain(model: nn.Module) -> None:
    """ModelError if the code of the network's classes does not compute what the pruned network computes."""
    for name, module in model.named_modules():
        if isinstance(module, Mean) or any(each.startswith((KEPT, SCALE, WIDTH)) for each in vars(module)):
            raise ModelError(
                f"{name} ({type(module).__name__}) computes with a number of channels of the original network, which "
                "the code of its class does not do; write an .onnx or .pt2 file instead"
            )


def _check_same_layers(model: nn.Module, whole: nn.Module, built: str) -> None:
    """ModelError unless both have the same layers and tensors by name and kind, whatever their widths."""
    mine, others = dict(model.named_modules()), dict(whole.named_modules())
    for name in [*mine, *others]:
        one, other = mine.get(name), others.get(name)
        kinds = [type(each).__name__ if each is not None else "missing" for each in (one, other)]
        if one is None or other is None or type(one).__module__ != type(other).__module__ or kinds[0] != kinds[1]:
            where = f"layer {name}" if name else "network"
            raise ModelError(f"the {where} is {kinds[0]} in the pruned network and {kinds[1]} in {built}; {GIVE}")
        hooks = len(one._forward_pre_hooks) - (selection_of(one) is not None), len(one._forward_hooks)
        if hooks != (len(other._forward_pre_hooks), len(other._forward_hooks)):
            raise ModelError(f"{name or 'the network'} has hooks that it does not have in {built}; {GIVE}")
    named = [{name for name, _ in _named_tensors(each)} for each in (model, whole)]
    if different := sorted(named[0] ^ named[1]):
        having, missing = ("the pruned network", built) if different[0] in named[0] else (built, "the pruned network")
        raise ModelError(f"{having} has a tensor {different[0]}, and {missing} has none; {GIVE}")


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from ((n, b) for n, b in model.named_buffers(remove_duplicate=False) if n.rpartition(".")[2] != INDEX)


def _tensors_of(model: nn.Module, whole: nn.Module, built: str) -> dict[str, Tensor]:
    """What the weight file holds. Buffers that a state dict leaves out, and other tensors, only where they differ."""
    fresh, kept = dict(_named_tensors(whole)), model.state_dict().keys()
    tensors: dict[str, Tensor] = {}
    first: dict[int, str] = {}
    for name, tensor in _named_tensors(model):
        if fresh[name] is fresh[first.setdefault(id(tensor), name)] and first[id(tensor)] != name:
            continue  # shared in both
        if name in kept or isinstance(tensor, nn.Parameter) or not _same(tensor, fresh[name]):
            tensors[name] = tensor
    modules = dict(whole.named_modules())
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            other = vars(modules[prefix]).get(name)
            if isinstance(value, Tensor) and isinstance(other, Tensor) and not _same(value, other):
                fresh[f"{prefix}.{name}".lstrip(".")], tensors[f"{prefix}.{name}".lstrip(".")] = other, value
    for name, tensor in tensors.items():
        if tensor.dtype != fresh[name].dtype:
            raise ModelError(f"{name} is {tensor.dtype} in the network and {fresh[name].dtype} in {built}; {GIVE}")
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu())


_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def _changed_attributes(model: nn.Module, whole: nn.Module) -> dict[str, dict[str, Any]]:
    """Layer -> attributes that are plain data and have another value than in the unpruned network."""
    layers: dict[str, dict[str, Any]] = {}
    modules = dict(whole.named_modules())
    for prefix, module in model.named_modules():
        fresh = vars(modules[prefix])
        changed = {
            name: value
            for name, value in vars(module).items()
            if name not in _OF_EVERY_MODULE and not name.startswith("prunus_") and _is_literal(value)
            if name not in fresh or not _is_literal(fresh[name]) or fresh[name] != value
        }
        if changed:
            layers[prefix] = changed
    return layers


def _is_literal(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_literal, value))
    if type(value) is dict:
        return all(map(_is_literal, [*value, *value.values()]))
    return type(value) in (int, bool, str, type(None)) or (type(value) is float and math.isfinite(value))


# -- the file


def _literal(value: Any) -> str:
    """Python's repr, but strings as formatters write them."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if type(value) in (list, tuple):
        opening, closing = "[]" if type(value) is list else "()"
        comma = "," if type(value) is tuple and len(value) == 1 else ""
        return f"{opening}{', '.join(map(_literal, value))}{comma}{closing}"
    if type(value) is dict:
        return "{" + ", ".join(f"{_literal(key)}: {_literal(item)}" for key, item in value.items()) + "}"
    return repr(value)


def _table(name: str, entries: Mapping[str, Any]) -> str:
    """A dict with a line for each entry, or several if it is long."""
    how: Any = {"subsequent_indent": " " * 8, "break_long_words": False, "break_on_hyphens": False}
    lines = [f"    {_literal(key)}: {_literal(value)}," for key, value in entries.items()]
    return "\n".join([f"{name} = {{", *(textwrap.fill(line, 100, **how) for line in lines), "}"])


IMPORTS = (
    "from pathlib import Path",
    "import torch",
    "from safetensors.torch import load_file",
    "from torch import nn",
)


def _text(
    model: nn.Module, whole: nn.Module, path: Path, origin: _Origin, before: int, absent: Mapping[str, Absent]
) -> str:
    selections = {n: s for n, s in ((name, selection_of(m)) for name, m in model.named_modules()) if s is not None}
    channels = {name: (s.dim, s.index.tolist()) for name, s in selections.items()}
    gone = {name: (module.zeros, module.whole) for name, module in absent.items()}
    environment = Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    template = environment.from_string(Path(__file__).with_suffix(".jinja").read_text(encoding="utf-8"))
    return template.render(
        name=type(model).__name__,
        parameters=f"{sum(parameter.numel() for parameter in model.parameters()):,}",
        parameters_before=f"{before:,}",
        stem=path.stem,
        weights=path.with_suffix(".safetensors").name,
        home=origin.home,
        imports=_sorted([*IMPORTS, *origin.imports]),
        source=origin.source,
        call=origin.call,
        layers=_table("LAYERS", _changed_attributes(model, whole)),
        absent=_table("ABSENT", gone) if gone else "",
        selections=_table("SELECTIONS", channels) if channels else "",
        filled=any(selection.filled for selection in selections.values()),
    )


# -- the comparison


def run_file(file: str, batches: str, answers: str, folders: str) -> None:
    """Build the network of a file and write its outputs. This function is run alone, where there is no prunus."""
    import importlib.util
    import json
    import sys

    import torch
    from safetensors.torch import load_file, save_file

    sys.modules["prunus"] = None  # type: ignore[assignment]  # which makes importing it an error
    sys.path[:] = json.loads(folders)
    spec = importlib.util.spec_from_file_location("exported", file)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    model, tensors = module.build(), load_file(batches)

    def filled(value: Any) -> Any:
        if isinstance(value, list):
            return [filled(each) for each in value]
        if isinstance(value, dict):
            return tensors[value["tensor"]] if set(value) == {"tensor"} else {k: filled(v) for k, v in value.items()}
        return value

    with open(batches + ".json") as calls, torch.no_grad():  # noqa: PTH123
        made = [all_tensors(model(*filled(call["args"]), **filled(call["kwargs"]))) for call in json.load(calls)]
    outputs = {f"{n}.{i}": t.contiguous().clone() for n, each in enumerate(made) for i, t in enumerate(each)}
    save_file(outputs, answers)


def all_tensors(output: Any) -> list[Tensor]:
    """The tensors of an output, in the order of its structure."""
    if hasattr(output, "detach"):
        return [output.detach()]
    if isinstance(output, list | tuple):
        return [tensor for part in output for tensor in all_tensors(part)]
    if isinstance(output, dict):
        return [tensor for part in output.values() for tensor in all_tensors(part)]
    return [tensor for part in getattr(output, "__dict__", {}).values() for tensor in all_tensors(part)]


def _compared(model: nn.Module, batches: list[Any], file: Path) -> Difference:
    """Run the file in a new process without prunus, and compare its outputs with the network's."""
    tensors: dict[str, Tensor] = {}

    def stored(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        tensors[str(len(tensors))] = value.detach().cpu().contiguous().clone()
        return {"tensor": str(len(tensors) - 1)}

    calls = []
    for batch in batches:
        args, kwargs = as_call(batch)
        calls.append({"args": tree_map(stored, list(args)), "kwargs": tree_map(stored, kwargs)})
    given, answers = file.with_name("batches.safetensors"), file.with_name("answers.safetensors")
    save_file(tensors, given)
    given.with_name(given.name + ".json").write_text(json.dumps(calls))
    functions = inspect.getsource(all_tensors) + inspect.getsource(run_file)
    code = f"from __future__ import annotations\nimport sys\n{functions}\nrun_file(*sys.argv[1:])"
    with current_folder_importable():
        folders = json.dumps([str(Path(folder).resolve()) for folder in sys.path])
    command = [sys.executable, "-c", code, str(file), str(given), str(answers), folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        if "import of prunus halted" in reason:
            reason = "its modules import prunus; put the class into a module that does not"
        raise ModelError(f"the file does not run in a new process without prunus: {reason}")
    found = load_file(answers)
    error = 0.0
    with evaluating(model), generators_kept(), torch.no_grad():
        for number, batch in enumerate(batches):
            want = all_tensors(call(model, to_device(batch, device_of(model))))
            got = [found[name] for name in (f"{number}.{i}" for i in range(len(found))) if name in found]
            if not want:
                raise ModelError(f"{type(model).__name__} returns no tensors that could be compared")
            error = max(error, distance([g.reshape(-1) for g in got], [w.cpu().reshape(-1) for w in want]))
    if error > TOLERANCE:
        raise ModelError(
            f"the network that the file builds differs by {error:.1e} of how much the outputs vary, and at most "
            f"{TOLERANCE:g} is accepted. Something besides widths, selections and weights is different from its class: "
            f"{GIVE}"
        )
    return Difference(error, sum(count_images(batch) for batch in batches))
