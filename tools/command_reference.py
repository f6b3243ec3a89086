"""Writes docs/reference/commands.md from the parser of the command line: `python tools/command_reference.py`.

With --check it writes nothing and ends with 1 if the page is out of date.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ptq4vit_onnx.cli.main import EXIT_CODES, TRACEBACK, build_parser

FILE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "commands.md"
INTRODUCTION = """\
<!-- Written by tools/command_reference.py from the parser. -->

# Commands

`ptq4vit-onnx COMMAND --help` prints what stands here. The column "without it" says what holds where an option is not
given. Tables and results go to standard output; progress, warnings and errors to standard error. An error is one line.
"""
CODES = f"""\
## Exit codes

{{codes}}

Code 1 is for CI: `parity` and `export` end with it where a file does not compute what it should, `reproduce` where a
model was skipped. After an interrupted `export`, `pareto` or `reproduce` the same command goes on where it stopped.
With the environment variable `{TRACEBACK}=1` an unexpected error prints its traceback.
"""
# Of each command; a test parses them.
EXAMPLES: Mapping[str, Sequence[str]] = {
    "models": ("ptq4vit-onnx models",),
    "export": (
        "ptq4vit-onnx export --model vit_digits --bits 6 --output digits",
        "ptq4vit-onnx export --model deit_b --data photos/ --max-size 60MB",
    ),
    "eval": ("ptq4vit-onnx eval digits/float.onnx digits/model.onnx",),
    "parity": ("ptq4vit-onnx parity digits/model.onnx --reference digits/float.onnx --require-plan",),
    "bench": ("ptq4vit-onnx bench digits/float.onnx digits/model.onnx --threads 1,2 --profile",),
    "pareto": ("ptq4vit-onnx pareto --model vit_digits --points 4 --output sizes",),
    "reproduce": ("ptq4vit-onnx reproduce table1 --data imagenet/ --models vit_s",),
}
FEW = 3  # options that are rather repeated than looked up elsewhere
_CODE = re.compile(
    r"(`[^`]*`)|((?<![\w-])--[a-z][\w-]*|\b[\w-]+\.(?:json|onnx|html|svg|csv|md|npy|npz)\b|\bplan\.safetensors\b"
    r"|(?<!\w)\.[a-z]{2,11}\b|\w+:(?://)?[A-Z][A-Z:]+\b|NAME=FILE|\./\w+|(?<=; )-(?= prints))"
)
_DEFAULT = re.compile(r"^(.*?)\s*\(([^()]*)\)$")


@dataclass(frozen=True)
class Group:
    """Options of a command, as rows of a table."""

    command: str
    title: str
    rows: tuple[tuple[str, str, str], ...]

    @property
    def anchor(self) -> str:
        return f"{self.command}-{self.title}".replace(" ", "-")


Groups: TypeAlias = list[Group]


def reference_text() -> str:
    parser = build_parser()
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    helps = {choice.dest: choice.help or "" for choice in commands._choices_actions}
    contents = table(("Command", "What it does"), [(f"[`{name}`](#{name})", helps[name]) for name in commands.choices])
    groups: Groups = []
    sections = [command_text(name, helps[name], commands.choices[name], groups) for name in commands.choices]
    return "\n".join([INTRODUCTION, contents, "", *sections, CODES.format(codes=exit_codes())])


def command_text(name: str, summary: str, parser: argparse.ArgumentParser, before: Groups) -> str:
    """The section of one command: what it does, its synopsis, examples, and a table for each group of options.

    before: the groups of earlier commands, which this one's are added to. A group that an earlier command has is named
    and not repeated.
    """
    parts = [f"## {name}", "", sentence(parser.description or summary), ""]
    parts += ["```text", synopsis(parser), "```", "", "```sh", *EXAMPLES[name], "```", ""]
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action.dest != "help"]
        if actions:
            title = {"positional arguments": "arguments"}.get(group.title or "", group.title or "options")
            parts += [f"### {name}: {title}", "", *([sentence(group.description), ""] if group.description else [])]
            parts += [*group_text(Group(name, title, tuple(map(row, actions))), before), ""]
            parts += exclusions(parser, actions)
    return "\n".join(parts)


def group_text(group: Group, before: Groups) -> list[str]:
    same = next((other for other in before if other.title == group.title and set(group.rows) <= set(other.rows)), None)
    if same is None or len(group.rows) < FEW:
        before.append(group)
        return [table(("Argument" if group.title == "arguments" else "Option", "Meaning", "Without it"), group.rows)]
    less = [row[0] for row in same.rows if row not in group.rows]
    but = f", but for {', '.join(less)}" if less else ""
    return [f"The options of [{same.command}: {same.title}](#{same.anchor}){but}."]


def synopsis(parser: argparse.ArgumentParser) -> str:
    """ptq4vit-onnx parity MODEL --reference FLOAT [OPTIONS]: what must be given."""
    needed = [action for action in parser._actions if action.required]
    places = [_value(action) for action in needed if not action.option_strings]
    options = [f"{action.option_strings[0]} {_value(action)}" for action in needed if action.option_strings]
    return " ".join([parser.prog, *places, *options, "[OPTIONS]"])


def row(action: argparse.Action) -> tuple[str, str, str]:
    """The cells of an option: its names, what it means and may be, and what holds without it."""
    meaning, default = divided(action.help or "")
    choices = [] if action.choices is None else [f"`{choice}`" for choice in action.choices]
    said = "<br>".join(part for part in (marked(meaning), " ".join(choices)) if part)
    return names(action), said, "required" if action.required else marked(default)


def names(action: argparse.Action) -> str:
    """`--output DIR`, `--out DIR`"""
    if not action.option_strings:
        return f"`{_value(action)}`"
    value = "" if action.choices else _value(action)
    return ", ".join(f"`{f'{name} {value}'.strip()}`" for name in action.option_strings)


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper().replace("_", "-")
    return {"+": f"{metavar} [{metavar} ...]", "?": f"[{metavar}]"}.get(str(action.nargs), metavar)


def divided(help: str) -> tuple[str, str]:
    """The help of an option, and what it says in brackets at its end: what holds without the option."""
    found = _DEFAULT.match(help)
    return (found[1], found[2]) if found else (help, "")


def exclusions(parser: argparse.ArgumentParser, actions: Sequence[argparse.Action]) -> Iterator[str]:
    """A sentence for options of which only one can be given."""
    for group in parser._mutually_exclusive_groups:
        several = [f"`{action.option_strings[0]}`" for action in group._group_actions if action in actions]
        if several:
            yield from (f"{', '.join(several[:-1])} and {several[-1]} exclude each other.", "")


def exit_codes() -> str:
    """EXIT_CODES, "exit codes: 0 done, 1 ..", as a table."""
    found = (part.partition(" ") for part in EXIT_CODES.partition(": ")[2].split(", "))
    return table(("Code", "Meaning"), [(code, meaning) for code, _, meaning in found])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in cells] for cells in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def sentence(text: str) -> str:
    marked_text = marked(text)
    return marked_text[0].upper() + marked_text[1:] + ("" if text.endswith(".") else ".")


def marked(text: str) -> str:
    """Options and files as code, where they are not so already."""
    return _CODE.sub(lambda found: found[1] or f"`{found[2]}`", text)


def main(arguments: list[str]) -> int:
    text = reference_text()
    if "--check" not in arguments:
        FILE.write_text(text, encoding="utf-8")
    elif not FILE.is_file() or FILE.read_text(encoding="utf-8") != text:
        print(f"{FILE} is out of date; run python tools/command_reference.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
