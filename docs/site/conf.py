"""Sphinx's configuration: Markdown by MyST, tutorials executed by MyST-NB, docstrings by autodoc, the theme Furo."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import lexvl_anserini

project = "LexVL"
author = "The LexVL authors"
version = release = lexvl_anserini.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"LexVL {release}"
html_static_path = [str(Path(__file__).with_name("static"))]
html_css_files = ["site.css"]
# A block without a language is a command or an output.
highlight_language = "none"
html_copy_source = html_show_copyright = html_show_sphinx = False

# As GitHub does: anchors of headings, and no mathematics between dollars, which are names of shell variables here.
myst_heading_anchors = 4
myst_enable_extensions: list[str] = []

nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 900
nb_merge_streams = True

# Types are in the signature; a docstring writes names in single backticks, as Markdown does.
default_role = "literal"
smartquotes = False  # `--` stays what it is
autodoc_typehints = "signature"
# Packages of the extra [adapters]; the docstrings of their adapters are read without them.
autodoc_mock_imports = ["langchain_core", "pyterrier"]
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

# `name   what it is`, the lines in which docstrings describe fields; further lines are indented as far as the text.
FIELD = re.compile(r"^(?P<names>\w+(?:, \w+)*) {2,}(?P<text>\S.*)$")
# A name, and a letter behind it, as in `Document`s, which reStructuredText takes for an unfinished name.
NAME = re.compile(r"(`[^`\n]+`)(\w?)")
SECTION = re.compile(r"^(Args|Returns|Yields|Raises|Example|Attributes):$")


def with_fields(lines: list[str]) -> list[str]:
    """The lines of a docstring, its columns of fields as lists and its indented blocks as literal blocks."""
    shown: list[str] = []
    column = 0  # where the text of the current field begins; 0 outside of fields
    inside = literal = False  # of a Google section; of an indented block
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if SECTION.match(line):
            inside = True
        if not inside and (field := FIELD.match(line)):
            if not column and shown and shown[-1]:
                shown.append("")
            shown.append(f"* `{field['names']}`: {field['text']}")
            column = field.start("text")
        elif column and line.strip() and indent >= column:
            shown.append(f"  {line.strip()}")
        else:
            if column and line.strip() and shown[-1]:
                shown.append("")
            column = column if not line.strip() else 0
            opens = not inside and not literal and indent >= 4 and (not shown or not shown[-1])
            if opens:
                shown += ["::", ""]
            literal = opens or (literal and (indent >= 4 or not line.strip()))
            shown.append(line)
    return shown


def setup(app: Any) -> dict[str, bool]:
    """Connects `with_fields`, which runs before napoleon reads the sections."""

    def process(app: Any, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
        lines[:] = [NAME.sub(lambda span: "\\ ".join(filter(None, span.groups())), one) for one in with_fields(lines)]

    app.connect("autodoc-process-docstring", process, priority=100)
    return {"parallel_read_safe": True}
