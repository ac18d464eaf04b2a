"""Reproduction: the numbers that papers print, as typed cells that a run of this project can be compared with."""
