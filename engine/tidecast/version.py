"""The version, where modules of the package read it without importing all of it."""

VERSION = "0.2.0"
