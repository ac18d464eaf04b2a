"""Plug-ins of this distribution, one folder each: what is not of the line from a corpus to its measures.

The `__init__.py` of a plug-in has its rows, which setup.cfg names as entry points; a package of anybody else names its
own. A plug-in imports the core and, where its first lines say so, another plug-in; the core imports none.
"""
