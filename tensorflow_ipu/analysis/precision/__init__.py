"""Float16 beside float32: the figures of both, reports and their pages, and the steps that measure them."""
