// The cluster at a glance: problems, traffic, latencies, members and moves.

import { get } from "../api.js";
import { chart } from "../chart.js";
import { h } from "../dom.js";
import { bytesPerSecond, clock, count, isKnown, milliseconds, perSecond, plural, short, time } from "../format.js";
import { mayCluster } from "../session.js";
import { badge, button, card, empty, notices, pageHead, table, tile, tilesOfFour } from "../widgets.js";
import { balance, partitionLink, shortName } from "./shared.js";
import { mergeHistory } from "./history.js";

const SHOWN = 8;
const STEADY_MS = 5000;
const MOVING_MS = 1000;

export function overviewPage(app) {
  return {
    title: "Overview",
    section: "overview",
    // Refresh often while partitions move, to show the moves as they happen.
    refreshMs: (data) => (data?.status.moves_under_way.length ? MOVING_MS : STEADY_MS),
    async load(signal, before) {
      const [status, history] = await Promise.all([get("cluster/status", { limit: SHOWN }, signal), mergeHistory(before?.history, signal)]);
      return { status, history };
    },
    view: ({ status, history }) => view(app, status, history),
  };
}

function view(app, status, history) {
  const found = problems(status, history);
  const now = history.samples.at(-1) ?? {};
  const worst = found.some(({ tone }) => tone === "bad") ? "bad" : found.length ? "warn" : "good";
  const word = { bad: "Partly not served", warn: "See the notes", good: "All served" }[worst];
  return [
    pageHead(h("span", null, `Cluster ${status.cluster} `, badge(word, worst)), status.cluster_id),
    found.length ? notices(found) : null,
    tilesOfFour(
      tile("Records in", perSecond(now.records_in_per_s)),
      tile("Bytes in", bytesPerSecond(now.bytes_in_per_s)),
      tile("Bytes out", bytesPerSecond(now.bytes_out_per_s)),
      tile("Produce p99", milliseconds(now.produce_p99_ms)),
      tile("Topics", count(status.topics), "with internal ones", "#/topics"),
      tile("Partitions", count(status.partitions), status.unassigned ? `${count(status.unassigned)} without a broker` : "with those of internal topics"),
      tile("Members", count(status.members.length), "", "#/members"),
      tile("Connections", isKnown(now.connections) ? count(now.connections) : "–"),
    ),
    charts(history),
    h(
      "div",
      { class: "columns" },
      card("Roles and zones", roles(status.members)),
      card(
        "Moves",
        [
          status.moves_under_way.length
            ? moves(status)
            : empty(isKnown(status.is_balancing) || status.is_from_leader ? "Nothing moves: every partition and shard is where the leader wants it." : "The leader does not respond, and only it knows the moves."),
          pastMoves(status.past_moves),
        ],
        status.members.length > 1 && mayCluster("ALTER") ? button("Balance…", () => balance(app), "small") : null,
      ),
    ),
  ];
}

/** Return the notes for an operator, the worst first. */
function problems(status, history) {
  const found = [];
  const add = (tone, title, text, href = null) => found.push({ tone, title, text, href });
  if (!status.leader) add("bad", "No leader", "No partition is assigned and no topic is created. Start a process with the controller's role, or see in its log why none is elected.", "#/members");
  else if (!status.is_from_leader) add("warn", "The leader does not respond", `${status.leader} is the leader. The facts are as ${status.asked} has them; loads and moves are missing.`, "#/members");
  if (status.store_trouble) add("bad", "The metadata store takes no writes", status.store_trouble);
  if (status.unassigned_shards) add("bad", `${plural(status.unassigned_shards, "shard")} without a coordinator`, "Their groups or transactions are not served. Start a process with the coordinator's role, or wait for the leader to assign them.", "#/members");
  if (status.unassigned) add("bad", `${plural(status.unassigned, "partition")} without a broker`, "Their records can be neither read nor written. Start a process with the broker's role, or wait for the leader to assign them.", "#/members");
  const partitions = status.partitions_not_served;
  for (const each of partitions.slice(0, SHOWN)) {
    add("bad", `${each.topic} partition ${each.partition} is not served`, each.why || "no reason is known", `#/topics/${encodeURIComponent(each.topic)}/partitions/${each.partition}`);
  }
  const further = status.partitions_not_served_total - Math.min(SHOWN, partitions.length);
  if (further > 0) add("bad", `${plural(further, "further partition")} not served`, "bmq cluster status lists all of them.");
  const shards = status.shards_not_loaded;
  for (const each of shards.slice(0, SHOWN)) add("bad", `${each.kind === "groups" ? "Groups" : "Transactions"} of shard ${each.shard} are not served`, `${each.coordinator || "no process"} coordinates it: ${each.why}`);
  if (shards.length > SHOWN) add("bad", `${plural(shards.length - SHOWN, "further shard")} not served`, "bmq cluster status lists all of them.");
  for (const each of status.quarantined.slice(0, SHOWN)) add("bad", `${each.what} is not used`, each.why);
  const unused = status.quarantined_total - Math.min(SHOWN, status.quarantined.length);
  if (unused > 0) add("bad", `${plural(unused, "further key or topic", "further keys or topics")} not used`, "bmq cluster status lists all of them.");
  for (const name of status.silent) add("warn", `${name} does not respond`, "Its traffic, and the partitions that it cannot serve, are not in these numbers.", "#/members");
  for (const member of status.members) {
    if (member.storage_trouble) add("bad", `Storage acknowledges nothing that ${member.incarnation} writes`, member.storage_trouble, "#/storage");
    if (member.unreachable_for) add("warn", `${member.incarnation} cannot be reached by ${plural(member.unreachable_for, "proxy", "proxies")}`, "Check the network between them.", "#/members");
    if (member.is_draining) add("info", `${member.incarnation} is draining`, `It still has ${plural(member.partitions, "partition")} and ${plural(member.shards, "shard")}.`, "#/members");
  }
  for (const each of history.missing.filter(({ member }) => !status.silent.includes(member))) add("warn", `Rates of ${each.member} are missing`, each.why);
  const order = { bad: 0, warn: 1, info: 2 };
  return found.sort((one, other) => order[one.tone] - order[other.tone]);
}

function charts({ samples, interval_ms: interval }) {
  const points = (name) => samples.map((each) => [each.time_ms, each[name]]);
  return h(
    "div",
    { class: "charts" },
    chart({ title: "Bytes per second", interval, base: 2, format: bytesPerSecond, series: [{ name: "in", tone: "one", points: points("bytes_in_per_s") }, { name: "out", tone: "two", points: points("bytes_out_per_s") }] }),
    chart({ title: "Records in per second", interval, format: perSecond, series: [{ name: "", tone: "one", points: points("records_in_per_s") }] }),
    chart({ title: "Produce latency", interval, format: milliseconds, series: [{ name: "p50", tone: "one", points: points("produce_p50_ms") }, { name: "p99", tone: "two", points: points("produce_p99_ms") }] }),
    chart({ title: "Flush to storage", interval, format: milliseconds, series: [{ name: "p50", tone: "one", points: points("flush_p50_ms") }, { name: "p99", tone: "two", points: points("flush_p99_ms") }] }),
    chart({ title: "Requests per second", interval, format: perSecond, series: [{ name: "produce", tone: "one", points: points("produces_per_s") }, { name: "fetch", tone: "two", points: points("fetches_per_s") }] }),
    chart({ title: "Error responses per second", interval, format: perSecond, series: [{ name: "", tone: "bad", points: points("errors_per_s") }] }),
  );
}

const ROLES = ["proxy", "broker", "coordinator", "controller"];

function roles(members) {
  const zones = [...new Set(members.map((each) => each.zone))].sort();
  const rows = zones.map((zone) => ({ zone, members: members.filter((each) => each.zone === zone) }));
  const number = (each, role) => each.members.filter(({ roles: has }) => has.includes(role)).length;
  return table({
    label: "Processes by zone and role",
    rows,
    keyOf: ({ zone }) => zone,
    columns: [
      { name: "zone", title: "Zone", class: "nowrap", cell: ({ zone }) => zone || h("span", { class: "muted" }, "no zone") },
      ...ROLES.map((role) => ({ name: role, title: role[0].toUpperCase() + role.slice(1), align: "right", cell: (each) => count(number(each, role)) })),
      { name: "partitions", title: "Partitions", align: "right", cell: (each) => short(each.members.reduce((sum, { partitions }) => sum + partitions, 0)) },
    ],
  });
}

const MOVE_COLUMNS = [
  { name: "partition", title: "Partition", cell: (each) => partitionLink(each.topic, each.partition) },
  { name: "from", title: "From", cell: (each) => shortName(each.from) },
  { name: "to", title: "To", cell: (each) => shortName(each.to) },
  { name: "why", title: "Why", cell: (each) => each.why },
];

function moves(status) {
  return table({
    label: "Moves under way",
    rows: status.moves_under_way.slice(0, 50),
    keyOf: (each) => `${each.topic} ${each.partition}`,
    columns: MOVE_COLUMNS,
  });
}

function pastMoves(all) {
  if (all.length === 0) return null;
  return h(
    "details",
    null,
    h("summary", null, `Past moves: ${all.length}, the last at ${clock(all[0].ended_ms)}`),
    table({
      label: "Past moves",
      rows: all,
      keyOf: (each) => `${each.topic} ${each.partition} ${each.ended_ms}`,
      columns: [
        { name: "ended", title: "Ended", class: "nowrap", cell: (each) => h("span", { title: time(each.ended_ms) }, clock(each.ended_ms)) },
        MOVE_COLUMNS[0],
        { name: "took", title: "Took", align: "right", cell: (each) => (isKnown(each.took_ms) ? milliseconds(each.took_ms) : badge("not over after 10 s", "warn")) },
        ...MOVE_COLUMNS.slice(1),
      ],
    }),
  );
}
