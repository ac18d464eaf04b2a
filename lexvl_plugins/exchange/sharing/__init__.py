"""Encoders for others: folders that load anywhere, model cards, and models of the Hugging Face hub."""
