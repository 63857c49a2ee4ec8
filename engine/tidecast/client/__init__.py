"""The Python client: cores that never wait, flows that wait once for both, two thin shells.

It uses `api`, `buffers`, `layout` and `native`, and knows nodes only as links; nothing below
imports it.
"""

from tidecast import supported

supported.check_libraries()
