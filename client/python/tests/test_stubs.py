"""The types: each public name of the native module has a stub, and each stub a name."""

import ast
import importlib.resources
import inspect

import fabricbios
from fabricbios import _native


def members(of):
    """The public names of a module or class, the methods of classes too."""
    names = set()
    for name, value in vars(of).items():
        if not name.startswith("_"):
            names.add(name)
            names |= {f"{name}.{it}" for it in members(value)} if inspect.isclass(value) else set()
    return names


def declared(body):
    """The same of a stub."""
    names = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
            names |= {f"{node.name}.{it}" for it in declared(node.body)} if isinstance(node, ast.ClassDef) else set()
    return names


def test_the_stub_has_the_names_of_the_module():
    files = importlib.resources.files("fabricbios")
    stub = ast.parse((files / "_native.pyi").read_text())
    assert declared(stub.body) == members(_native)
    assert (files / "py.typed").is_file()


def test_every_public_function_has_types():
    for module in (fabricbios, fabricbios.aio):
        for name, value in vars(module).items():
            members_of = vars(value).items() if inspect.isclass(value) and value.__module__.startswith("fabricbios") else []
            for member, function in [(name, value), *members_of]:
                if inspect.isfunction(function) and not member.startswith("_"):
                    assert "return" in inspect.get_annotations(inspect.unwrap(function)), f"{name}.{member}"
