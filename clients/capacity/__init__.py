"""Plots of `octavo simulate memory` and `plan`, from their results as plain data."""
