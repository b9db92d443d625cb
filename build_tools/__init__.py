"""Tools that build, check and document the package."""
