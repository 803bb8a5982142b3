#!/usr/bin/python3
"""names.py DIRECTORY…: checks that the Python programs of each directory compile, and that every name that they use is
there: a global one in the program or in Python, one that is imported from a program beside it in that one. Prints the others
with their places, and exits with 1 if there are any."""
import ast
import builtins
import pathlib
import symtable
import sys

OF_MODULES = {"__doc__", "__file__", "__name__", *dir(builtins)}


def tables(table):
    """The symbol tables of a module and of everything in it."""
    yield table
    for child in table.get_children():
        yield from tables(child)


class Program:
    """One file: its syntax tree, the names that it defines, and the global names that it uses."""

    def __init__(self, path):
        self.path, source = path, path.read_text(encoding="utf-8")
        self.tree = ast.parse(source, str(path))
        self.has, self.uses = set(), set()
        for table in tables(symtable.symtable(source, str(path), "exec")):
            is_module = table.get_type() == "module"
            for symbol in table.get_symbols():
                if symbol.is_global() or is_module:
                    self.uses |= {symbol.get_name()} if symbol.is_referenced() else set()
                    self.has |= {symbol.get_name()} if symbol.is_assigned() or symbol.is_imported() else set()

    def lacks(self, beside):
        """Line and name of each use of a missing name; `beside`: programs that it can import."""
        missing = self.uses - self.has - OF_MODULES
        modules = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                modules.update({it.asname or it.name: beside[it.name] for it in node.names if it.name in beside})
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name) and node.id in missing:
                yield node.lineno, node.id
            elif isinstance(node, ast.ImportFrom) and node.module in beside:
                yield from ((node.lineno, f"{node.module}.{it.name}") for it in node.names if it.name not in beside[node.module].has)
            elif (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules
                  and node.attr not in modules[node.value.id].has | OF_MODULES):
                yield node.lineno, f"{node.value.id}.{node.attr}"


def main():
    """Checks all directories."""
    found = 0
    for directory in sys.argv[1:]:
        programs = {path.stem: Program(path) for path in sorted(pathlib.Path(directory).glob("*.py"))}
        if not programs:
            sys.exit(f"{directory}: no Python program")
        for program in programs.values():
            for line, name in program.lacks(programs):
                found += 1
                print(f"{program.path}:{line}: {name} is not defined")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
