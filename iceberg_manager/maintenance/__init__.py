"""Keeps tables healthy: statistics and health from metadata, a planner that decides, an orphan finder. No Spark here."""
