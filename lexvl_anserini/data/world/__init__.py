"""The demo's small world: what scenes hold (`world`, `staging`), how they are told (`grammar`, `words`) and drawn.

Drawing goes from `drawing` (a scene to pixels) through `composing` and `placing` (where things stand) to `painting`
(pixels) and `shapes` (outlines); the other modules are the shapes themselves, as data.
"""
