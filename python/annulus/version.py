"""The package's version."""

#: The same as the program's; a test compares them.
VERSION = "0.1.0"
