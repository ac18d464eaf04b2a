"""Measures runs on flickr30k: hit rates in both directions, as the papers call R@k."""

from __future__ import annotations

from eval.image_text import caption_command
from lexvl_anserini.cli import run

command = caption_command("flickr30k", "eval.flickr30k")

if __name__ == "__main__":
    run(command)
