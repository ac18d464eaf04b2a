"""Measures runs on flickr30k: hit rates in both directions, as the papers call R@k."""

from lexvl_anserini.cli import run

from .image_text import make_caption_command

command = make_caption_command("flickr30k", "eval.flickr30k")

if __name__ == "__main__":
    run(command)
