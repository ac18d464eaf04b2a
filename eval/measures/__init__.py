"""Measures: of runs against judgements, their significance, and what approximations and encoders lose or find."""
