"""Training: recipes (what), pairs (models), data and batches, objectives and regularisers, and the loop."""
