"""Where the CPU time of one analysis goes: imports, reading, analysis and rules, HTML. Prints JSON, seconds."""

import json
import sys
import time

at = [time.process_time()]

from profilerkit import api  # noqa: E402 - the import is one of the stages
from profilerkit.formats import jobs  # noqa: E402
from profilerkit.report import html  # noqa: E402

at.append(time.process_time())
columns = jobs.read_trace(sys.argv[1])
at.append(time.process_time())
jobs.read_trace = lambda _path, **_options: columns
report = api.analyze(sys.argv[1])
at.append(time.process_time())
page = html.render(report)
at.append(time.process_time())
names = ("import", "read", "analyze", "html")
stages = {name: later - earlier for name, earlier, later in zip(names, at, at[1:], strict=False)}
print(json.dumps({**stages, "import": stages["import"] + at[0]}))
