"""The command `lexvl import`: vectors that another program wrote -> shards, as `encode` writes them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from lexvl_anserini import cli
from lexvl_anserini.encode import QuantiserOptions, ShardOptions, report
from lexvl_anserini.encoders.encoder import Encoder


@dataclass(frozen=True)
class MakerOptions:
    """What the file does not say: who made the vectors, and of what."""

    encoder: Annotated[
        str | None, typer.Option(help="Made the vectors, and encodes queries.", autocompletion=cli.encoder_names)
    ] = None
    checkpoint: cli.Checkpoint = None
    tokenizer: cli.Tokenizer = None
    backbone_config: cli.BackboneConfig = None
    settings: cli.Settings = None
    corpus: Annotated[
        str | None, typer.Option(help="Dataset of the documents; default the file.", autocompletion=cli.corpus_names)
    ] = None

    def load(self) -> Encoder | None:
        """Loads the encoder on the CPU; None without one."""
        from lexvl_anserini.encoders.loading import load_encoder
        from lexvl_anserini.ground.errors import UsageError

        if self.encoder is None:
            if self != MakerOptions(corpus=self.corpus):
                raise UsageError("--checkpoint, --tokenizer, --backbone-config and --set are for --encoder")
            return None
        options = cli.parse_settings(self.settings or ())
        return load_encoder(self.encoder, self.checkpoint, self.tokenizer, self.backbone_config, "cpu", **options)


@cli.expand_options
def command(
    file: Annotated[
        Path, typer.Argument(help="FILE.jsonl of {id, vector}, a folder of them, FILE.ciff, each packed; .npz, .pt.")
    ],
    output: Annotated[Path | None, typer.Option(help="Folder of the shards; default impacts/<FILE>.")] = None,
    *,
    maker: MakerOptions,
    quantised: QuantiserOptions,
    shards: ShardOptions,
    ids: Annotated[Path | None, typer.Option(help="For a matrix: file of the ids of its rows, one a line.")] = None,
    vocabulary: Annotated[Path | None, typer.Option(help="For a matrix: file of the terms of its columns.")] = None,
    escape_ids: Annotated[bool, typer.Option("--escape-ids", help="Percent-encode ids that have white space.")] = False,
    overwrite: cli.Overwrite = False,
    style: cli.Style = "text",
    verbose: cli.Verbose = False,
) -> None:
    """Import vectors that another program wrote, as shards. Integers stay as they are; others are quantised.

    Example: python -m lexvl_plugins.exchange.import_shards vectors.jsonl.gz --output impacts/imported
    """
    from lexvl_plugins.exchange.importing import ImportSettings, import_file, name_shards

    started, target = time.perf_counter(), output or name_shards(file)
    encoded = (maker.corpus, maker.load(), quantised.load(), shards.layout())
    settings = ImportSettings(*encoded, escape_ids, ids, vocabulary)
    with cli.progress_bar(f"import {file}", None) as progress:
        manifest = import_file(file, target, settings, overwrite, progress)
    cli.print_rows(report(manifest, target, time.perf_counter() - started), style)


if __name__ == "__main__":
    cli.run(command)
