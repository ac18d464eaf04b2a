"""The command `lexvl export-onnx`: encoder -> a folder of ONNX graphs, which encode and search without torch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from lexvl_anserini import cli
from lexvl_anserini.encoders.loading import EXPORT
from lexvl_anserini.ground.claims import Claim, claim
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_plugins.onnx.loading import SIDES, read_whole


def command(
    encoder: Annotated[str, typer.Option(help="A row of encode --list-encoders.", autocompletion=cli.encoder_names)],
    output: Annotated[
        Path, typer.Option(help="Folder of the graphs, later the --checkpoint beside --set runtime=onnx.")
    ],
    checkpoint: cli.Checkpoint = None,
    tokenizer: cli.Tokenizer = None,
    backbone_config: cli.BackboneConfig = None,
    settings: cli.Settings = None,
    queries_only: Annotated[bool, typer.Option("--queries-only", help="Leave out what only documents need.")] = False,
    overwrite: cli.Overwrite = False,
    style: cli.Style = "text",
    verbose: cli.Verbose = False,
) -> None:
    """Export an encoder as ONNX graphs, for --set runtime=onnx.

    Example: python -m lexvl_plugins.onnx.export_onnx --encoder vdr --checkpoint minilm --output exports/minilm
    """
    from lexvl_anserini.encoders.loading import load_encoder
    from lexvl_plugins.onnx.exporting import export

    started = time.perf_counter()
    if output.exists() and not (output / EXPORT).is_file() and (output.is_file() or any(output.iterdir())):
        raise ArtefactError(f"{output}: holds something else than an exported encoder; name another --output")
    model = load_encoder(encoder, checkpoint, tokenizer, backbone_config, "cpu", **cli.parse_settings(settings or ()))
    exported = read_whole(output)
    if exported and exported.document is None and not queries_only:
        exported = None
    earlier = exported.encoder.without_places() if exported else None
    done = claim(output, "an exported encoder", model.identity().without_places(), earlier, overwrite) is Claim.DONE
    exported = exported if exported and done else export(model, output, queries_only)
    rows: dict[str, Any] = {"output": str(output), "encoder": model.name, "checkpoint": model.checkpoint}
    for name in SIDES:
        side = getattr(exported, name)
        rows[name] = (side.graph or "a bag of tokens, no graph") if side else "left out"
    rows["bytes"] = sum((output / name).stat().st_size for name in exported.files)
    cli.print_rows({**rows, "seconds": round(time.perf_counter() - started, 2)}, style)


if __name__ == "__main__":
    cli.run(command)
