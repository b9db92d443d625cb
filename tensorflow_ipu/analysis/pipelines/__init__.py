"""What pipelines cost, and how they compare and look."""
