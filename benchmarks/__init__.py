"""What it costs, measured as ratios against named peers in one run. ``make bench`` runs all; ARGS="pipeline" one."""
