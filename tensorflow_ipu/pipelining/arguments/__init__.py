"""What `pipeline` was given: checked, all faults at once, and brought into one form."""
