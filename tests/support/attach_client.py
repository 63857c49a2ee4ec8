"""A client process for tests: attaches, opens a publication, says so, waits to be killed.

With `fork`, a child of it keeps running after it and holds whatever it inherited.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tidecast.api.link import PublicationOptions
from tidecast.client.links.socket import SocketLink

link = SocketLink.connect(Path(sys.argv[1]), "victim")
link.open_publication("a", PublicationOptions())
if sys.argv[2:] == ["fork"] and os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
sys.stdout.write(f"{link.client_id}\n")
sys.stdout.flush()
sys.stdin.read()
