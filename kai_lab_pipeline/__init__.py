"""The KAI Scheduler and HAMi GPU sharing lab as Dagster assets, with every expected output as an asset check."""

__version__ = "0.1.0"
