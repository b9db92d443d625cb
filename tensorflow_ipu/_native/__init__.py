"""The compiled library: how it is loaded, and its journal of events."""
