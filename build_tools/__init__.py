"""What `setup.py` needs beyond setuptools."""
