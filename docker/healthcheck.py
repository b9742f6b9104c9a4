"""Whether the node in this container can take requests: exit code 0, as an image's health check wants it."""

import http.client
import os
import sys

node = http.client.HTTPConnection("127.0.0.1", int(os.environ.get("THREAD_PORT") or 8081), timeout=4)
try:
    node.request("GET", "/readyz")
    sys.exit(node.getresponse().status != 200)
except OSError as error:
    sys.exit(f"the node does not answer: {error}")
