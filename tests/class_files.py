"""Reads class files of Java as far as linking needs them (Java Virtual Machine Specification, chapter 4)."""

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

# Sizes of the constants in a class file, by tag; the first one, text, has a length of its own.
UTF8, INTEGER, FLOAT, LONG, DOUBLE, CLASS, STRING = 1, 3, 4, 5, 6, 7, 8
FIELD, METHOD, INTERFACE_METHOD, NAME_AND_TYPE = 9, 10, 11, 12
SIZES = {INTEGER: 4, FLOAT: 4, LONG: 8, DOUBLE: 8, CLASS: 2, STRING: 2, FIELD: 4, METHOD: 4, INTERFACE_METHOD: 4}
SIZES |= {NAME_AND_TYPE: 4, 15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}

LUCENE = "org/apache/lucene/"


class ClassFile(NamedTuple):
    """What a class declares, and what it refers to."""

    name: str
    parents: list[str]  # its superclass and interfaces
    members: set[tuple[str, str]]  # (name, type) of its fields and methods
    references: set[tuple[str, str, str]]  # (class, name, type) of the fields and methods that its code uses


def read_class(code: bytes) -> ClassFile:
    constants, at = _constants(code)

    def text(index: int) -> str:
        return str(constants[index][1])

    def class_name(index: int) -> str:
        return text(constants[index][1])

    references = set()
    for tag, value in constants.values():
        if tag in (FIELD, METHOD, INTERFACE_METHOD):
            owner, name_and_type = struct.unpack(">HH", value)
            name, kind = struct.unpack(">HH", constants[name_and_type][1])
            references.add((class_name(owner), text(name), text(kind)))
    _, this, parent, interfaces = struct.unpack_from(">HHHH", code, at)
    parents = [parent, *struct.unpack_from(f">{interfaces}H", code, at + 8)]
    at += 8 + 2 * interfaces
    members = set()
    for _ in range(2):  # fields, then methods
        (count,) = struct.unpack_from(">H", code, at)
        at += 2
        for _ in range(count):
            _, name, kind, attributes = struct.unpack_from(">HHHH", code, at)
            members.add((text(name), text(kind)))
            at += 8
            for _ in range(attributes):
                at += 6 + struct.unpack_from(">I", code, at + 2)[0]
    return ClassFile(class_name(this), [class_name(index) for index in parents if index], members, references)


def unresolved(code: ClassFile, find: Callable[[str], ClassFile]) -> list[str]:
    """The references to Lucene that no class of it declares, with this exact type; `find` reads a class by name."""
    ours = (reference for reference in sorted(code.references) if reference[0].startswith(LUCENE))
    return [f"{owner}.{name}{kind}" for owner, name, kind in ours if (name, kind) not in _members(owner, find)]


def _members(owner: str, find: Callable[[str], ClassFile]) -> set[tuple[str, str]]:
    """The members of a class of Lucene and of its parents; of Java's classes none."""
    if not owner.startswith(LUCENE):
        return set()
    found = find(owner)
    return found.members.union(*(_members(parent, find) for parent in found.parents))


def _constants(code: bytes) -> tuple[dict[int, tuple[int, Any]], int]:
    """Index -> (tag, value) of the constants, and where they end."""
    assert code[:4] == b"\xca\xfe\xba\xbe"
    (count,) = struct.unpack_from(">H", code, 8)
    found: dict[int, tuple[int, Any]] = {}
    at, index = 10, 1
    while index < count:
        tag = code[at]
        at += 1
        if tag == UTF8:
            (size,) = struct.unpack_from(">H", code, at)
            found[index] = (tag, code[at + 2 : at + 2 + size].decode("utf-8", "replace"))
            at += 2 + size
        else:
            raw = code[at : at + SIZES[tag]]
            found[index] = (tag, struct.unpack(">H", raw)[0] if tag in (CLASS, STRING) else raw)
            at += SIZES[tag]
        # Numbers of 8 bytes take two places.
        index += 2 if tag in (LONG, DOUBLE) else 1
    return found, at
