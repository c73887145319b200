"""The content security policy of the benchmarks' pages: their own scripts run, named by hash, and no other."""

import base64
import hashlib
import re

#: What a page's policy says in place of the hashes until it is sealed.
PLACE = "SCRIPT-HASHES"


def sealed(page: str, *unpacked: str) -> str:
    """The page with the hashes of its plain scripts, and of those that it unpacks, in its policy."""
    scripts = [*re.findall(r"<script>(.*?)</script>", page, re.DOTALL), *unpacked]
    digests = [base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii") for script in scripts]
    return page.replace(PLACE, " ".join(f"'sha256-{digest}'" for digest in digests), 1)
