"""The status page: what this process is, and links to what can be asked of it.  Nothing is loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from bmq.console.operations import ProcessFacts
from bmq.console.state import ClusterFacts

_LINKS = (
    ("/healthz", "the process is well"),
    ("/readyz", "clients may be sent here"),
    ("/metrics", "counters, for Prometheus"),
    ("/api/v1/cluster", "the cluster, and this process's part in it"),
    ("/api/v1/cluster/status", "its processes, their load, what moves"),
    ("/api/v1/members", "the same of its processes alone"),
    ("/api/v1/topics", "its topics"),
    ("/api/v1/groups", "its consumer groups, of all processes"),
    ("/api/v1/openapi.json", "what the API answers, described"),
)
_TITLES = ("Member", "Roles", "Zone", "Address", "Partitions", "Shards", "State")
_STYLE = """\
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 3rem auto; padding: 0 1rem }
dl { display: grid; grid-template-columns: max-content auto; gap: .2rem 1.5rem }
dd { margin: 0 }
th { text-align: left; font-weight: normal; opacity: .7 }
th, td { padding-right: 1.5rem; vertical-align: top }
code { font-size: .9em }
"""


def status_page(cluster: ClusterFacts, members: Sequence[ProcessFacts], is_ready: bool, reason: str) -> str:
    """HTML, in one piece."""
    facts = (
        ("State", reason if reason else ("ready" if is_ready else "not ready")),
        ("Version", cluster["version"]),
        ("Cluster", cluster["cluster_id"]),
        ("Node", cluster["node_id"]),
        ("Kafka endpoint", ", ".join(f"{broker['host']}:{broker['port']}" for broker in cluster["brokers"])),
        ("Topics", cluster["topics"]),
        ("Partitions", cluster["partitions"]),
        ("Connections", cluster["connections"]),
    )
    rows = "\n".join(f"<dt>{title}</dt><dd>{escape(str(value))}</dd>" for title, value in facts)
    links = "\n".join(
        f'<tr><td><a href="{path}"><code>{path}</code></a></td><td>{text}</td></tr>' for path, text in _LINKS
    )
    processes = "\n".join(map(_process, members))
    titles = "".join(f"<th>{title}</th>" for title in _TITLES)
    return f"""\
<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>BMQ: status</title>
<style>
{_STYLE}</style></head>
<body>
<h1>BMQ: status</h1>
<dl>
{rows}
</dl>
<h2>Processes</h2>
<table>
<tr>{titles}</tr>
{processes}
</table>
<h2>More</h2>
<table>
{links}
</table>
</body>
</html>
"""


def _process(member: ProcessFacts) -> str:
    """A row of the table of members."""
    state = [word for word, is_so in (("leads", member["is_leader"]), ("draining", member["is_draining"])) if is_so]
    cells = (
        member["incarnation"],
        ", ".join(member["roles"]),
        member["zone"],
        member["kafka"] or member["internal"],
        member["partitions"],
        member["shards"],
        ", ".join(state),
    )
    return f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in cells)}</tr>"
