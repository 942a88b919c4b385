"""Which nodes are one kernel: fused, chained, merged, split."""
