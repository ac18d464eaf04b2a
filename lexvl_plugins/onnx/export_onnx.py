"""The command `lexvl export-onnx`: encoder -> a folder of ONNX graphs, which encode and search without torch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from lexvl_anserini import cli
from lexvl_anserini.ground.claims import Claim, claim
from lexvl_anserini.ground.errors import ArtefactError


def command(
    encoder: Annotated[str, typer.Option(help="A row of encode --list-encoders.", autocompletion=cli.encoder_names)],
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the graphs, later the --checkpoint of --runtime onnx; default the cache, where typed "
            "queries find them."
        ),
    ] = None,
    checkpoint: cli.Checkpoint = None,
    tokenizer: cli.Tokenizer = None,
    backbone_config: cli.BackboneConfig = None,
    settings: cli.Settings = None,
    queries_only: Annotated[
        bool,
        typer.Option("--queries-only", help="Leave the side of documents out: enough for typed queries."),
    ] = False,
    overwrite: cli.Overwrite = False,
    style: cli.Style = "text",
    verbose: cli.Verbose = False,
) -> None:
    """Export an encoder as ONNX graphs, for --runtime onnx.

    Example: python -m lexvl_plugins.onnx.export_onnx --encoder vdr --checkpoint minilm --output exports/minilm
    """
    from lexvl_anserini.encoders.loading import load_encoder
    from lexvl_plugins.onnx import exporting
    from lexvl_plugins.onnx.exports import cached_export, is_sound
    from lexvl_plugins.onnx.loading import SIDES, Export, is_export

    started = time.perf_counter()
    if output is not None and output.exists() and not is_export(output) and (output.is_file() or any(output.iterdir())):
        raise ArtefactError(f"{output}: holds something else than an exported encoder; name another --output")
    model = load_encoder(encoder, checkpoint, tokenizer, backbone_config, "cpu", **cli.parse_settings(settings or ()))
    cached, output = output is None, output or cached_export(model.identity())
    # A damaged folder of the cache counts as none.
    exported = Export.read(output) if is_sound(output) or is_export(output) and not cached else None
    if cached and exported and exported.document is None and not queries_only:
        exported = None
    request = model.identity().without_places()
    there = exported.encoder.without_places() if exported else None
    done = claim(output, "an exported encoder", request, there, overwrite) is Claim.DONE
    exported = exported if exported and done else exporting.export(model, output, queries_only)
    rows: dict[str, Any] = {"output": str(output), "encoder": model.name, "checkpoint": model.checkpoint}
    sides = {side: getattr(exported, side) for side in SIDES}
    rows |= {name: (side.graph or "a bag of tokens, no graph") if side else "left out" for name, side in sides.items()}
    rows["bytes"] = sum((output / name).stat().st_size for name in exported.files)
    rows["seconds"] = round(time.perf_counter() - started, 2)
    cli.print_rows(rows, style)


if __name__ == "__main__":
    cli.run(command)
