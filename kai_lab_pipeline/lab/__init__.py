"""The pure domain of the lab: claims, evidence, GPU arithmetic, versions, diagnosis. No I/O and no Dagster in here."""
