// One topic: its partitions with their cleaning, records and configs, and commands for them.

import { act, get, path } from "../api.js";
import { dialog, field } from "../dialog.js";
import { h } from "../dom.js";
import { bytes, bytesPerSecond, count, isKnown, percent, perSecond, plural, time } from "../format.js";
import { mayCluster, rightsOn } from "../session.js";
import { button, card, copyable, empty, nextOrder, orderOf, pageHead, pager, searchField, sorted, table, tabs, tile, tiles } from "../widgets.js";
import { pageOf } from "./list.js";
import { recordsTab } from "./records.js";
import { cleaningReason, configSource, partitionState, shortName, topicHref } from "./shared.js";

const SIZE = 50; // partitions of a page

export function topicPage(app, name, tab = "partitions") {
  const records = tab === "records" ? recordsTab(app, name) : null;
  const loadTab = (signal) => {
    if (tab === "configs") return get(path`topics/${name}/configs`, {}, signal);
    if (tab === "records") return records.load(signal);
    const page = pageOf(app.query);
    return get(path`topics/${name}`, { after: page * SIZE - 1, limit: SIZE }, signal);
  };
  return {
    title: name,
    section: "topics",
    refreshMs: tab === "records" ? null : 5000,
    queried: records?.queried,
    async load(signal) {
      const [rights, facts] = await Promise.all([rightsOn("topic", name, signal), loadTab(signal)]);
      return { rights, facts };
    },
    view: ({ rights, facts }) => {
      const may = (operation) => rights.includes(operation);
      return [
        pageHead(
          name,
          null,
          may("WRITE") && may("READ") ? button("Produce…", () => records ? records.produce() : app.go(`${topicHref(name, "/records")}?produce=1`)) : null,
          may("ALTER") ? button("Add partitions…", () => addPartitions(app, name)) : null,
          may("DELETE") ? button("Delete…", () => deleteTopic(app, name), "danger") : null,
        ),
        tabs("Parts of the topic", [
          { name: "partitions", title: "Partitions", href: topicHref(name) },
          may("READ") ? { name: "records", title: "Records", href: topicHref(name, "/records") } : null,
          may("DESCRIBE_CONFIGS") ? { name: "configs", title: "Configs", href: topicHref(name, "/configs") } : null,
        ].filter(Boolean), tab),
        tab === "configs" ? configs(app, name, facts, may("ALTER_CONFIGS")) : tab === "records" ? records.view(facts) : partitions(app, name, facts),
      ];
    },
  };
}

// -------------------------------------------------------------------------------------------------------- partitions

function partitions(app, name, { topic, partitions: rows }) {
  const sum = (key) => (rows.every((each) => !isKnown(each[key])) ? null : rows.reduce((total, each) => total + (each[key] ?? 0), 0));
  const records = rows.reduce((total, each) => total + ((each.high_watermark ?? 0) - (each.log_start ?? 0)), 0);
  const notServed = rows.filter((each) => each.state !== "WRITE").length;
  const isWhole = topic.partitions <= SIZE;
  const here = isWhole ? "" : "on this page";
  const columns = [
    { name: "partition", title: "Partition", cell: (each) => h("a", { href: topicHref(name, `/partitions/${each.partition}`) }, count(each.partition)) },
    { name: "state", title: "State", cell: (each) => h("span", null, partitionState(each), each.why ? h("span", { class: "why" }, each.why) : null) },
    { name: "owner", title: "Broker", cell: (each) => shortName(each.owner) },
    { name: "epoch", title: "Epoch", align: "right", cell: (each) => count(each.epoch) },
    { name: "log_start", title: "Log start", align: "right", cell: (each) => count(each.log_start) },
    { name: "high_watermark", title: "High watermark", align: "right", cell: (each) => count(each.high_watermark) },
    { name: "bytes_in", title: "Bytes in", align: "right", cell: (each) => bytesPerSecond(each.rates?.bytes_in) },
    { name: "bytes_out", title: "Bytes out", align: "right", cell: (each) => bytesPerSecond(each.rates?.bytes_out) },
    { name: "bytes", title: "Size", align: "right", cell: (each) => bytes(each.bytes) },
    { name: "acts", title: "", label: "Acts", align: "right", cell: (each) => button("Move…", () => movePartition(app, name, each), "small", { "aria-label": `Move partition ${each.partition}` }) },
  ].filter((each) => each.name !== "acts" || mayCluster("ALTER"));
  return [
    tiles(
      tile("Partitions", count(topic.partitions), notServed ? `${count(notServed)} not served ${here}` : `${plural(topic.replication_factor, "copy", "copies")} of each file`),
      tile("Records", count(records), here),
      tile("Size", bytes(sum("bytes")), here),
      tile("Records in", perSecond(topic.rates?.records_in)),
      tile("Bytes in", bytesPerSecond(topic.rates?.bytes_in)),
      tile("Bytes out", bytesPerSecond(topic.rates?.bytes_out)),
    ),
    table({ label: "Partitions", rows, columns, keyOf: (each) => each.partition }),
    pager({ page: pageOf(app.query), size: SIZE, total: topic.partitions, go: (page) => app.ask({ page: page || null }), what: "partition" }),
    cleaning(name, rows.filter((each) => each.cleaning)),
    h("p", { class: "foot" }, "Topic id ", copyable(topic.topic_id, app.tell)),
  ];
}

/** Return the card of the cleaning of the partitions on this page; null for a topic that is not compacted. */
function cleaning(name, rows) {
  if (rows.length === 0) return null;
  return card("Cleaning", [
    h("p", { class: "hint" }, "The state at the last look of each partition's owner. Dirty are bytes since the last cleaning, of all that a cleaning reads."),
    table({
      label: "Cleaning",
      rows,
      keyOf: (each) => each.partition,
      columns: [
        { name: "partition", title: "Partition", cell: (each) => h("a", { href: topicHref(name, `/partitions/${each.partition}`) }, count(each.partition)) },
        { name: "reason", title: "Not cleaned now", cell: ({ cleaning: { reason, why } }) => h("span", null, cleaningReason(reason), why ? h("span", { class: "why" }, why) : null) },
        { name: "dirty", title: "Dirty", align: "right", class: "nowrap", cell: ({ cleaning: { dirty_percent: dirty } }) => percent(isKnown(dirty) ? dirty / 100 : null) },
        { name: "cleaned", title: "Last cleaning", class: "nowrap", cell: (each) => time(each.cleaning.cleaned_ms) },
        { name: "before", title: "Bytes before", align: "right", class: "nowrap", cell: (each) => bytes(each.cleaning.bytes_before) },
        { name: "after", title: "Bytes after", align: "right", class: "nowrap", cell: (each) => bytes(each.cleaning.bytes_after) },
      ],
    }),
  ]);
}

async function movePartition(app, name, { partition, owner }) {
  let members;
  try {
    members = (await get("members")).members;
  } catch (error) {
    app.tell(error.message, "bad");
    return;
  }
  const brokers = members.filter((each) => each.roles.includes("broker") && !each.is_draining && each.incarnation !== owner);
  const state = { member: brokers[0]?.incarnation ?? "" };
  dialog({
    title: `Move partition ${partition} of ${name}`,
    verb: "Move",
    state,
    body: () =>
      brokers.length
        ? [h("p", null, "From ", shortName(owner), ". The partition pauses for a moment; clients see no error, and no data is copied."), field(state, "member", "To", { options: brokers.map((each) => [each.incarnation, `${each.incarnation}${each.zone ? `, zone ${each.zone}` : ""}`]) })]
        : h("p", null, "There is no other broker. Start a process with the broker's role first."),
    act: brokers.length
      ? async () => {
          const moved = await act("POST", "cluster/move", { topic: name, partition, member: state.member });
          app.tell(`Partition ${partition} is assigned to ${moved.member}`);
          app.reload();
        }
      : null,
  });
}

function addPartitions(app, name) {
  const state = { partitions: "" };
  dialog({
    title: `Add partitions to ${name}`,
    verb: "Add",
    state,
    body: () => [
      field(state, "partitions", "Partitions in all", { kind: "number", min: 1, required: true }),
      h("p", { class: "hint" }, "Partitions cannot be removed again. From then on, the same keys go to other partitions."),
    ],
    async act() {
      const made = await act("POST", path`topics/${name}/partitions`, { partitions: Number(state.partitions) });
      app.tell(`${name} has ${plural(made.partitions, "partition")}`);
      app.reload();
    },
  });
}

function deleteTopic(app, name) {
  dialog({
    title: `Delete ${name}`,
    verb: "Delete the topic",
    danger: true,
    type: name,
    body: () => h("p", null, "All of its records are deleted. This cannot be undone."),
    async act() {
      await act("DELETE", path`topics/${name}`);
      app.tell(`Topic ${name} is deleted`);
      app.go("#/topics");
    },
  });
}

// ----------------------------------------------------------------------------------------------------------- configs

function configs(app, name, { configs: all }, mayAlter) {
  const search = (app.query.get("search") ?? "").toLowerCase();
  const order = orderOf(app.query.get("sort"), "name");
  const columns = [
    { name: "name", title: "Name", cell: (each) => h("span", null, h("code", null, each.name), each.documentation ? h("span", { class: "why" }, each.documentation) : null), sort: (each) => each.name },
    { name: "value", title: "Value", cell: (each) => (each.is_sensitive ? h("span", { class: "muted" }, "not shown") : h("code", { class: "wrap" }, each.value === "" ? "“”" : each.value ?? "–")), sort: (each) => each.value ?? "" },
    { name: "source", title: "From", cell: (each) => configSource(each.source), sort: (each) => each.source },
    {
      name: "acts", title: "", label: "Acts", align: "right",
      cell: (each) => each.is_read_only ? h("span", { class: "muted" }, "read-only") : h("span", { class: "actions" },
        button("Set…", () => setConfig(app, name, each), "small", { "aria-label": `Set ${each.name}` }),
        each.source === "DYNAMIC_TOPIC_CONFIG" ? button("Reset…", () => resetConfig(app, name, each), "small", { "aria-label": `Reset ${each.name}` }) : null),
    },
  ].filter((each) => each.name !== "acts" || mayAlter);
  const rows = sorted(all.filter((each) => each.name.includes(search)), columns, order);
  return [
    h("div", { class: "toolbar" }, searchField("Search configs", app.query.get("search") ?? "", (text) => app.set({ search: text }))),
    rows.length
      ? table({ label: "Configs", rows, columns, keyOf: (each) => each.name, order, onsort: (by) => app.set({ sort: nextOrder(order, by) }) })
      : empty("No config has this in its name.", button("Clear the search", () => app.set({ search: null }))),
  ];
}

function setConfig(app, name, config) {
  const state = { value: config.is_sensitive ? "" : config.value ?? "" };
  const others = config.synonyms.filter((each) => each.source !== "DYNAMIC_TOPIC_CONFIG");
  dialog({
    title: `Set ${config.name} of ${name}`,
    verb: "Set",
    state,
    body: () => [
      config.documentation ? h("p", null, config.documentation) : null,
      field(state, "value", `Value (${config.type.toLowerCase()})`),
      others.length ? h("p", { class: "hint" }, "Without it: ", others.map((each, index) => [index ? ", else " : "", h("code", null, `${each.name}=${each.value}`)])) : null,
    ],
    async act() {
      await act("POST", path`topics/${name}/configs`, { set: { [config.name]: state.value } });
      app.tell(`${config.name} is set`);
      app.reload();
    },
  });
}

function resetConfig(app, name, config) {
  const next = config.synonyms.find((each) => each.source !== "DYNAMIC_TOPIC_CONFIG");
  dialog({
    title: `Reset ${config.name} of ${name}`,
    verb: "Reset",
    body: () => h("p", null, "The topic's own value ", h("code", null, config.value), " is removed", next ? [": then ", h("code", null, `${next.name}=${next.value}`), " applies."] : "."),
    async act() {
      await act("POST", path`topics/${name}/configs`, { delete: [config.name] });
      app.tell(`${config.name} is reset`);
      app.reload();
    },
  });
}
