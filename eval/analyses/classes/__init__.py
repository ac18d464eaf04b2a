"""Sets of images with classes."""
