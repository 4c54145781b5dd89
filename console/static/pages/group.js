// One group: its members, its lag by partition and over time, and the reset of its offsets after a preview.

import { act, get, groupPath } from "../api.js";
import { chart } from "../chart.js";
import { dialog, field } from "../dialog.js";
import { h } from "../dom.js";
import { count, isKnown, plural, short } from "../format.js";
import { rightsOn } from "../session.js";
import { bar, button, card, empty, nextOrder, notices, orderOf, pageHead, sorted, table, tile, tiles } from "../widgets.js";
import { groupName, groupState, partitionLink, topicLink } from "./shared.js";

const PARTITIONS = 250;
const SAMPLES = 240;
const SHOWN_PREVIEW = 200;

export function groupPage(app, id) {
  return {
    title: groupName(id),
    section: "groups",
    refreshMs: 5000,
    async load(signal, before) {
      const known = before?.lag.samples ?? [];
      const [rights, details, lag] = await Promise.all([
        rightsOn("group", id, signal),
        get(groupPath(id), { limit: PARTITIONS, after: app.query.get("after") ?? "" }, signal),
        get(groupPath(id, "/lag"), known.length ? { after: known.at(-1).time_ms } : {}, signal),
      ]);
      return { rights, details, lag: { ...lag, samples: [...known, ...lag.samples].slice(-SAMPLES) } };
    },
    view: ({ rights, details, lag }) => view(app, id, rights, details, lag),
  };
}

function view(app, id, rights, details, lag) {
  const { group, members, offsets } = details;
  const isEmpty = group.members === 0;
  const unknown = offsets.filter((each) => !isKnown(each.lag)).length;
  return [
    pageHead(
      h("span", null, groupName(id), " ", groupState(group.state)),
      null,
      !rights.includes("READ") ? null : button("Reset offsets…", () => resetOffsets(app, id, details), "", { disabled: !isEmpty, title: isEmpty ? null : "Stop its consumers first" }),
      !rights.includes("DELETE") ? null : button("Delete…", () => deleteGroup(app, id), "danger", { disabled: !isEmpty, title: isEmpty ? null : "Stop its consumers first" }),
    ),
    tiles(
      tile("Lag", count(details.lag), unknown ? `${count(unknown)} partitions unknown` : details.next ? "of this page" : ""),
      tile("Members", count(group.members)),
      tile("Partitions", count(details.total)),
      tile("Assignor", details.protocol || "none"),
      tile("Protocol", group.protocol_type || "none"),
    ),
    h("div", { class: "charts wide" }, lag.error ? notices([{ tone: "warn", title: "Lag over time is missing", text: lag.error }]) : chart({ title: "Lag over time", interval: lag.interval_ms, format: short, series: [{ name: "", tone: "one", points: lag.samples.map((each) => [each.time_ms, each.lag]) }] })),
    h("p", { class: "hint" }, "Lag counts to the high watermark: records of open transactions are in it, which consumers of committed records cannot read yet."),
    card("Lag by partition", lagTable(app, offsets, members), details.next || app.query.get("after") ? pages(app, details.next) : null),
    card("Members", membersTable(members)),
  ];
}

function pages(app, next) {
  const go = (after) => app.ask({ after });
  return h("span", { class: "actions" }, button("First page", () => go(null), "small", { disabled: !app.query.get("after") }), button("Next page", () => go(next), "small", { disabled: next === null }));
}

function lagTable(app, offsets, members) {
  if (offsets.length === 0) return empty("The group has committed no offsets.");
  const most = Math.max(1, ...offsets.map((each) => each.lag ?? 0));
  const owners = new Map();
  for (const member of members) for (const [topic, numbers] of Object.entries(member.assignment)) for (const number of numbers) owners.set(`${topic} ${number}`, member.client_id);
  const order = orderOf(app.query.get("sort"), "-lag");
  const columns = [
    { name: "partition", title: "Partition", cell: (each) => partitionLink(each.topic, each.partition), sort: (each) => `${each.topic} ${String(each.partition).padStart(10, "0")}` },
    { name: "lag", title: "Lag", align: "right", cell: (each) => (isKnown(each.lag) ? h("span", { class: "with-bar" }, bar(each.lag / most, each.lag > 0 ? "warn" : ""), count(each.lag)) : h("span", { class: "muted", title: each.error }, each.error.toLowerCase())), sort: (each) => each.lag },
    { name: "offset", title: "Committed", align: "right", cell: (each) => count(each.offset), sort: (each) => each.offset },
    { name: "high_watermark", title: "High watermark", align: "right", cell: (each) => count(each.high_watermark), sort: (each) => each.high_watermark },
    { name: "member", title: "Client", cell: (each) => owners.get(`${each.topic} ${each.partition}`) ?? h("span", { class: "muted" }, "none"), sort: (each) => owners.get(`${each.topic} ${each.partition}`) ?? "" },
    { name: "metadata", title: "Metadata", cell: (each) => each.metadata || "" },
  ];
  return table({ label: "Lag by partition", rows: sorted(offsets, columns, order), columns, keyOf: (each) => `${each.topic} ${each.partition}`, order, onsort: (name) => app.set({ sort: nextOrder(order, name) }) });
}

function membersTable(members) {
  if (members.length === 0) return empty("No consumer is connected.");
  return table({
    label: "Members",
    rows: members,
    keyOf: (each) => each.member_id,
    columns: [
      { name: "client", title: "Client", cell: (each) => each.client_id || "(no client id)" },
      { name: "host", title: "Host", cell: (each) => each.client_host },
      { name: "instance", title: "Instance id", cell: (each) => each.group_instance_id ?? h("span", { class: "muted" }, "none") },
      { name: "assignment", title: "Assigned", cell: (each) => assignment(each.assignment) },
      { name: "member", title: "Member id", cell: (each) => h("code", { class: "wrap" }, each.member_id) },
    ],
  });
}

function assignment(topics) {
  const all = Object.entries(topics);
  if (all.length === 0) return h("span", { class: "muted" }, "none");
  return h("ul", { class: "plain-list" }, all.map(([name, numbers]) => h("li", null, topicLink(name), ` ${numbers.length > 12 ? plural(numbers.length, "partition") : numbers.join(", ")}`)));
}

// -------------------------------------------------------------------------------------------------------------- acts

const TARGETS = [["earliest", "the oldest record: read all again"], ["timestamp", "a time"], ["offset", "an offset"], ["shift", "forward or back by a number"], ["latest", "the end: skip all records"]];

function resetOffsets(app, id, details) {
  const topics = [...new Set(details.offsets.map((each) => each.topic))].sort();
  const state = { to: "earliest", value: "", time: "", topic: "", preview: null };
  const body = (dryRun) => {
    const wanted = { to: state.to, dry_run: dryRun };
    if (state.to === "timestamp") wanted.value = new Date(state.time).getTime();
    else if (state.to === "offset" || state.to === "shift") wanted.value = Number(state.value);
    if ("value" in wanted && !Number.isSafeInteger(wanted.value)) throw new Error(state.to === "timestamp" ? "Choose a time" : "Give a whole number");
    if (state.topic !== "") wanted.topics = [{ topic: state.topic, partitions: null }];
    return wanted;
  };
  const forget = (redraw) => () => {
    state.preview = null;
    redraw();
  };
  dialog({
    title: `Reset offsets of ${groupName(id)}`,
    verb: ({ preview }) => (preview ? `Set ${plural(preview.offsets.length, "offset")}` : "Preview"),
    state,
    body: (_, redraw) => [
      details.total === 0
        ? field(state, "topic", "Topic", { required: true }, forget(redraw))
        : details.offsets.length < details.total
          ? field(state, "topic", "Topic", { hint: "empty: all with committed offsets" }, forget(redraw))
          : field(state, "topic", "Topic", { options: [["", "all with committed offsets"], ...topics.map((each) => [each, each])] }, forget(redraw)),
      field(state, "to", "Go on at", { options: TARGETS }, forget(redraw)),
      state.to === "timestamp" ? field(state, "time", "Time", { kind: "datetime-local", step: 1 }, forget(redraw)) : null,
      state.to === "offset" || state.to === "shift" ? field(state, "value", state.to === "shift" ? "Records, less than 0 for back" : "Offset", { kind: "number" }, forget(redraw)) : null,
      state.preview ? previewTable(state.preview) : h("p", { class: "hint" }, "Preview the new offsets first: nothing is set before."),
    ],
    async act(_, redraw) {
      if (state.preview === null) {
        state.preview = await act("POST", groupPath(id, "/reset"), body(true));
        redraw();
        return false;
      }
      const done = await act("POST", groupPath(id, "/reset"), body(false));
      const failed = done.offsets.filter((each) => each.error).length;
      app.tell(failed ? `${plural(failed, "partition")} of ${count(done.offsets.length)} refused` : `${plural(done.offsets.length, "offset")} set`, failed ? "bad" : "good");
      app.reload();
      return true;
    },
  });
}

function previewTable({ offsets }) {
  return [
    table({
      label: "Preview",
      rows: offsets.slice(0, SHOWN_PREVIEW),
      keyOf: (each) => `${each.topic} ${each.partition}`,
      columns: [
        { name: "partition", title: "Partition", cell: (each) => `${each.topic} / ${each.partition}` },
        { name: "current", title: "Now", align: "right", cell: (each) => count(each.current) },
        { name: "new", title: "Then", align: "right", cell: (each) => count(each.new) },
        { name: "change", title: "Change", align: "right", cell: (each) => (isKnown(each.current) ? `${each.new >= each.current ? "+" : "−"}${count(Math.abs(each.new - each.current))}` : "new") },
      ],
    }),
    offsets.length > SHOWN_PREVIEW ? h("p", { class: "hint" }, `and ${plural(offsets.length - SHOWN_PREVIEW, "further partition")}`) : null,
  ];
}

function deleteGroup(app, id) {
  dialog({
    title: `Delete ${groupName(id)}`,
    verb: "Delete the group",
    danger: true,
    type: id,
    body: () => h("p", null, "Its committed offsets are deleted. A consumer that comes back starts as its auto.offset.reset says."),
    async act() {
      await act("DELETE", groupPath(id));
      app.tell(`Group ${groupName(id)} is deleted`);
      app.go("#/groups");
    },
  });
}
