"""`python -m tidecast.cli`."""

from tidecast.cli import main

if __name__ == "__main__":
    main(prog_name="tidecast")
