"""A small shop that stands in for the outside world: its exports, and the tour that `make run` takes through the lake."""
