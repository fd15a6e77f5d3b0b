"""The image's health check: exit code 0 where `/health/ready` says 200. Stdlib only, since it runs
every few seconds."""

import os
import ssl
import sys
import urllib.error
import urllib.request

# A variable that is empty counts as not set, as it does for the server.
port = os.environ.get("OCTAVO_PORT") or "8000"
secure = bool(os.environ.get("OCTAVO_SSL_CERTFILE"))
scheme = "https" if secure else "http"
# The certificate is issued for the name that clients use, not for this address.
context = ssl._create_unverified_context() if secure else None
# Whatever proxy the container is to use, it is not for this.
opener = urllib.request.build_opener(
    urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
)
try:
    with opener.open(f"{scheme}://127.0.0.1:{port}/health/ready", timeout=2) as reply:
        print(reply.read().decode())
except urllib.error.HTTPError as error:  # 503 says why in its body, which `docker inspect` shows
    print(error.read().decode())
    sys.exit(1)
except OSError as error:
    print(error)
    sys.exit(1)
