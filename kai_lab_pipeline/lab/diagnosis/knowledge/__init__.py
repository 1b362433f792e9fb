"""What is known of faults, as data: one module per component, each with its FAULTS."""
