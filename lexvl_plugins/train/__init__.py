"""Training: recipes (what), pairs (models), data and batches, objectives, the loop, and the folder of a run."""
