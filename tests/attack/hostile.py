"""Hostile changes of a checkpoint's folder: each takes the randomness and the folder, and changes one of its files."""

import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
from damage import damaged, places
from tiny_encoders import Runs

CODE = "open({mark!r}, 'w').close()"

# Numbers and values that no reader expects.
NUMBERS = (0, -1, 1, 2, 3, 2**31 - 1, 2**31, 2**53, 2**63, -(2**63), 10**7, 10**12, 10**30, 1e-300, 1e308, -1.5)
VALUES: tuple[Any, ...] = (
    *NUMBERS, None, True, False, "", "x", "x" * 5000, "../../x", "/dev/zero", "\ud800\ufffd\x00",
    [], [[]], {}, {"": {"": []}}, [None] * 50, float("nan"), float("inf"),
)  # fmt: skip


def files_of(folder: Path, *patterns: str) -> list[Path]:
    paths = {path for pattern in patterns or ("*",) for path in folder.rglob(pattern)}
    return sorted(path for path in paths if path.is_file() and not path.is_symlink())


def flipped(random: Random, folder: Path, mark: Path) -> None:
    """Some bytes of a file differ, often in its header."""
    path = random.choice(files_of(folder))
    data = path.read_bytes()
    near = random.choice([len(data), 400])
    path.write_bytes(damaged(random, data[:near], (b"?", bytes(99), data[:near])) + data[near:])


def replaced(random: Random, folder: Path, mark: Path) -> None:
    """A file is another kind of thing, or gone."""
    path = random.choice(files_of(folder))
    path.unlink()
    others = files_of(folder)
    kinds: list[Callable[[], Any]] = [
        path.mkdir, path.touch, lambda: path.symlink_to("/dev/zero"), lambda: os.mkfifo(path), lambda: None,
        lambda: path.symlink_to(path.name), lambda: path.write_bytes(random.choice(others).read_bytes()),
    ]  # fmt: skip
    random.choice(kinds)()


def retyped(random: Random, folder: Path, mark: Path) -> None:
    """Some values in a JSON file are of another type, or numbers are huge."""
    path = random.choice(files_of(folder, "*.json"))
    content = json.loads(path.read_text())
    for _ in range(random.choice([1, 1, 1, 2, 5])):
        if not (every := list(places(content, 60))):
            break
        container, key = random.choice(every)
        numbers = [place for place in every if isinstance(place[0][place[1]], (int, float))]
        if numbers and random.random() < 0.5:
            container, key = random.choice(numbers)
        container[key] = random.choice(NUMBERS) if random.random() < 0.5 else random.choice(VALUES)
    path.write_text(json.dumps(content, ensure_ascii=random.random() < 0.5), errors="surrogatepass")


def renamed(random: Random, folder: Path, mark: Path) -> None:
    """Keys in a JSON file are gone, or have the names of others that loaders look for."""
    path = random.choice(files_of(folder, "*.json"))
    content = json.loads(path.read_text())
    if entries := [place for place in places(content, 60) if isinstance(place[0], dict)]:
        container, key = random.choice(entries)
        value = container.pop(key)
        names = ("auto_map", "quantization_config", "model_type", "types", "path", "type", "x", "__class__")
        name = random.choice(names)
        container[name] = random.choice([value, name, {"AutoModel": "evil.Model"}])
    path.write_text(json.dumps(content))


def hostile_pickles(mark: Path) -> list[bytes]:
    """Pickles that call a function, by every opcode that can, each a dictionary with harmless things first."""
    source = CODE.format(mark=str(mark)).encode()
    text = b"X" + struct.pack("<I", len(source)) + source
    short = b"\x8c\x08builtins\x8c\x04exec\x93"
    head = b"\x80\x02}(X\x05\x00\x00\x00epochK\x03X\x01\x00\x00\x00a"
    calls = [
        b"cbuiltins\nexec\n(" + text + b"tR",
        b"c__builtin__\nexec\n" + text + b"\x85R",
        b"cos\nmkdir\n(X" + struct.pack("<I", len(str(mark))) + str(mark).encode() + b"tR",
        b"(S'" + source.replace(b"'", b'"') + b"'\nibuiltins\nexec\n",
        b"(cbuiltins\nexec\n" + text + b"o",
        short + text + b"\x85R",
        short + text + b"\x85\x81",
        short + text + b"\x85}\x92",
        b"\x82\x01" + text + b"\x85R",
        b"ctorch.hub\nload\n(X\x01\x00\x00\x00xtR",
        b"ctorch.serialization\nadd_safe_globals\n(](cbuiltins\nexec\netR",
        b"ccollections\ndefaultdict\ncbuiltins\nexec\n\x85R",
        b"ctorch._utils\n_rebuild_wrapper_subclass\n(cbuiltins\nexec\n" + text + b"tR",
        b"ctorch._tensor\n_rebuild_from_type_v2\n(cbuiltins\nexec\n" + b"ctorch\nTensor\n" + text + b"\x85}tR",
        b"ccollections\nOrderedDict\n)R}X\x08\x00\x00\x00__class__cbuiltins\nexec\nsb",
        b"cargparse\nNamespace\n)\x81}X\x0a\x00\x00\x00__reduce__cbuiltins\nexec\nsb",
    ]
    return [head + call + b"u." for call in calls]


def weights_of(folder: Path) -> Path:
    return next(iter(files_of(folder, "*.safetensors", "*.bin", "*.pt")), folder / "model.safetensors")


def planted(random: Random, folder: Path, mark: Path) -> None:
    """A pickle with a call, in any of torch's formats, instead of the weights."""
    old = weights_of(folder)
    path = old.with_name(random.choice(["pytorch_model.bin", "pytorch_model.bin", "model.tar", "x.pt", old.name]))
    old.unlink(missing_ok=True)
    data = random.choice(hostile_pickles(mark))
    kind = random.randrange(4)
    if kind == 0:
        path.write_bytes(data)
    elif kind == 1:
        call = Runs(exec, CODE.format(mark=str(mark)))
        inner: Any = {"state_dict": {"a": torch.ones(2), "b": call}, "args": {"x": [1, call]}}
        torch.save(inner, path, _use_new_zipfile_serialization=random.random() < 0.5)
    elif kind == 2:
        with zipfile.ZipFile(path, "w") as out:
            out.writestr("archive/data.pkl", data)
            out.writestr("archive/version", "3\n")
            out.writestr("archive/byteorder", "little")
    else:
        with open(path, "wb") as out:  # the format before torch 1.6: magic number, protocol, system, object, keys
            for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}):
                pickle.dump(part, out, 2)
            out.write(data)
            pickle.dump([], out, 2)


def zipped(random: Random, folder: Path, mark: Path) -> None:
    """A torch file whose zip lies: bombs, names, double entries, sizes."""
    old = weights_of(folder)
    path = old.with_name("pytorch_model.bin")
    old.unlink(missing_ok=True)
    torch.save({"a": torch.zeros(300_000), "b": torch.ones(3)}, path)
    with zipfile.ZipFile(path) as source:
        parts = {name: source.read(name) for name in source.namelist()}
    root = next(iter(parts)).split("/")[0]
    pickled, kind = f"{root}/data.pkl", random.randrange(6)
    if kind == 0:
        parts["/".join((root, "data", "0"))] = bytes(random.choice([10**6, 10**8]))
    elif kind == 1:
        parts[pickled] = b"\x80\x02" + b"N0" * 30_000_000 + b"}."
    elif kind == 2:
        true, claimed = (b"J" + struct.pack("<i", n) for n in (300_000, random.choice([10**6, 10**9, 2**31 - 1])))
        parts[pickled] = parts[pickled].replace(true, claimed)
    elif kind == 3:
        parts["../../../x"] = b"x"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if kind < 2 else zipfile.ZIP_STORED) as out:
        for name, content in parts.items():
            out.writestr(name, content)
        if kind == 4:
            out.writestr(pickled, hostile_pickles(mark)[0])
    if kind == 5:
        data = path.read_bytes()
        start = max(data.rfind(b"PK\x01\x02") - 500, 0)
        path.write_bytes(data[:start] + damaged(random, data[start:]))


def reheaded(random: Random, folder: Path, mark: Path) -> None:
    """A safetensors file whose header lies."""
    path = next(iter(files_of(folder, "*.safetensors")), None)
    if path is None:
        return flipped(random, folder, mark)
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    name = random.choice([key for key in header if key != "__metadata__"])
    kind = random.randrange(6)
    if kind == 0:
        header[name]["shape"] = [random.choice(NUMBERS[:12]) for _ in range(random.randrange(4))]
    elif kind == 1:
        header[name]["data_offsets"] = [random.choice(NUMBERS[:12]), random.choice(NUMBERS[:12])]
    elif kind == 2:
        header[name]["dtype"] = random.choice(["F64", "I8", "F8_E4M3", "X", 3, None, "F4", "C64"])
    elif kind == 3:
        header[name] = random.choice(VALUES[:28])
    text = json.dumps(header).encode()
    if kind == 4:
        text = b"[" * 100_000
    length = len(text) if kind != 5 else random.choice([0, 1, 2**63, 2**64 - 1, len(text) + 10**6])
    path.write_bytes(struct.pack("<Q", length) + text + body)
    return None


EVIL = """
{code}
from transformers import BertConfig, BertModel, BertForMaskedLM, BertTokenizerFast
class Config(BertConfig): model_type = 'evil'
class Model(BertModel): pass
class Tokenizer(BertTokenizerFast): pass
def load(*args, **kwargs): pass
"""


def coded(random: Random, folder: Path, mark: Path) -> None:
    """Python files, and entries that name them in every place where a loader looks."""
    for home in {folder, *(path.parent for path in files_of(folder))}:
        for name in ("evil.py", "__init__.py", "setup.py", "conftest.py", "requirements.txt", "sitecustomize.py"):
            (home / name).write_text(EVIL.format(code=CODE.format(mark=str(mark))))
    classes = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model", "AutoModelForMaskedLM": "evil.Model"}
    changes = {
        "auto_map": {**classes, "AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"]},
        "tokenizer_class": "EvilTokenizer", "model_type": "evil", "type": "evil.Model",
        "activation_function": "evil.load", "custom_pipelines": {"x": {"impl": "evil.Model"}},
        "chat_template": "{{ cycler.__init__.__globals__.os.system('touch " + str(mark) + "') }}",
        "model_args": {"trust_remote_code": True}, "attn_implementation": "evil/kernel",
        "base_model_name_or_path": "evil/model",
    }  # fmt: skip
    for path in files_of(folder, "*.json"):
        content = json.loads(path.read_text())
        if isinstance(content, dict) and random.random() < 0.6:
            drawn = {key: value for key, value in changes.items() if random.random() < 0.4}
            path.write_text(json.dumps({**content, **drawn}))
        elif isinstance(content, list) and random.random() < 0.6:
            kind = random.choice(["evil.Model", "os.system", "sentence_transformers.util.http_get", "evil.load"])
            path.write_text(json.dumps([{**entry, "type": kind} for entry in content if isinstance(entry, dict)]))
    if random.random() < 0.3:
        (folder / "config.json").unlink(missing_ok=True)


CHANGES: tuple[Callable[[Random, Path, Path], None], ...] = (
    flipped, flipped, replaced, retyped, retyped, renamed, planted, planted, zipped, reheaded, coded
)  # fmt: skip


# What a change raises where an earlier one removed, cut or damaged what it would change.
UNCHANGEABLE = (LookupError, ValueError, TypeError, AttributeError, OSError, RecursionError, struct.error)


def changed(random: Random, model: Path, folder: Path, mark: Path) -> tuple[Path, str]:
    """A copy of a checkpoint with one hostile change, sometimes two; and what was done."""
    copy, done = folder / "model", []
    if model.is_dir():
        shutil.copytree(model, copy)
    else:
        copy.mkdir()
        shutil.copyfile(model, copy / model.name)
    for _ in range(random.choice([1, 1, 1, 2])):
        change = random.choice(CHANGES)
        done.append(change.__name__)
        try:
            change(random, copy, mark)
        except UNCHANGEABLE:
            continue
    return copy if model.is_dir() else copy / model.name, " and ".join(done)
