"""Write the OpenAPI document: ``python -m tidecast_control.openapi backend/openapi.json``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tidecast_control.app import create_app


def document() -> str:
    """The document as it lies in the repository."""
    return json.dumps(create_app().openapi(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document(), "utf-8")
