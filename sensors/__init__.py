"""When tables change, in response to what. Sensors decide; the runs they ask for commit."""

import warnings

import dagster as dg

# The decorator passes this parameter on, given or not; Dagster calls it beta.
warnings.filterwarnings("ignore", "Parameter `owners`", dg.BetaWarning)
