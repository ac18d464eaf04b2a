"""The tests; a package, so that tests of one room import helpers of another."""
