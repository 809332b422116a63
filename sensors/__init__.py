"""When tables change, in response to what. Sensors decide; the runs they ask for commit."""
