"""How Sphinx makes the site of these pages: `make docs`. Nothing is fetched, and a warning is an error."""

import dataclasses
import inspect
import re
from importlib.metadata import version as _version

project = "isles"
author = copyright = "The isles developers"
release = version = _version("isles")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"isles {release}"
html_show_sphinx = False
html_copy_source = False

# pages are plain Markdown first, and headings have the names that GitHub gives them
myst_heading_anchors = 3
# a link to a folder of the repository leads somewhere on GitHub only; the tests see that it is there
nitpick_ignore_regex = [("myst", r"\.\./[^.]*|islands|pieces")]

# a name in single backticks becomes a link where there is something to link to
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
napoleon_numpy_docstring = False
python_display_short_literal_types = True
python_maximum_signature_line_length = 100

FIELD = re.compile(r"^    (\w+): [^#\n]+  # (.+)$", re.MULTILINE)
NOT_FOR_READERS = re.compile(r"tree_(un)?flatten|set_\w+_request|program")


def skip(app, what, name, thing, skipped, options):
    """Leave out what only JAX and scikit-learn call, and the empty descriptions of named tuples."""
    empty = (getattr(thing, "__doc__", None) or "").startswith("Alias for field number")
    return True if empty or NOT_FOR_READERS.fullmatch(name) else None


def add_fields(app, what, name, thing, options, lines):
    """Comments beside the fields of dataclasses and named tuples say what they hold: show them."""
    if what != "class" or not (dataclasses.is_dataclass(thing) or hasattr(thing, "_fields")):
        return
    described = FIELD.findall(inspect.getsource(thing).partition("\n    def ")[0])
    if described and not any(line.startswith(":param") for line in lines):
        lines += ["", *(f":ivar {field}: {comment.replace('*', chr(92) + '*')}" for field, comment in described)]


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-skip-member", skip)
    app.connect("autodoc-process-docstring", add_fields)
