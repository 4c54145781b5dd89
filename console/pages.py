"""The status page: what this process is, and links to what can be asked of it.  Nothing is loaded from elsewhere."""

from __future__ import annotations

from html import escape

from bmq.console.state import ClusterFacts

_LINKS = (
    ("/healthz", "the process is well"),
    ("/readyz", "clients may be sent here"),
    ("/metrics", "counters, for Prometheus"),
    ("/api/v1/cluster", "the cluster"),
    ("/api/v1/topics", "its topics"),
    ("/api/v1/groups", "its consumer groups"),
    ("/api/v1/openapi.json", "what the API answers, described"),
)
_STYLE = """\
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 3rem auto; padding: 0 1rem }
dl { display: grid; grid-template-columns: max-content auto; gap: .2rem 1.5rem }
dd { margin: 0 }
td { padding-right: 1.5rem }
code { font-size: .9em }
"""


def status_page(cluster: ClusterFacts, is_ready: bool, reason: str) -> str:
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
<table>
{links}
</table>
</body>
</html>
"""
