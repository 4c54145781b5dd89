// All topics, by pages, which the process searches and sorts.

import { act } from "../api.js";
import { dialog, field } from "../dialog.js";
import { h } from "../dom.js";
import { bytesPerSecond, count, perSecond, plural } from "../format.js";
import { mayCreateTopics } from "../session.js";
import { badge, button, empty, notices, pageHead } from "../widgets.js";
import { listQuery, listSearch, listTable, loadList } from "./list.js";
import { topicHref, topicLink } from "./shared.js";

const COLUMNS = [
  { name: "name", title: "Name", cell: (each) => h("span", null, topicLink(each.name), each.is_internal ? [" ", badge("internal")] : null), sort: true },
  { name: "partitions", title: "Partitions", align: "right", cell: (each) => count(each.partitions), sort: true },
  { name: "replication_factor", title: "Replicas", align: "right", cell: (each) => count(each.replication_factor), sort: true },
  { name: "records_in", title: "Records in", align: "right", cell: (each) => perSecond(each.rates?.records_in), sort: true },
  { name: "bytes_in", title: "Bytes in", align: "right", cell: (each) => bytesPerSecond(each.rates?.bytes_in), sort: true },
  { name: "bytes_out", title: "Bytes out", align: "right", cell: (each) => bytesPerSecond(each.rates?.bytes_out), sort: true },
  { name: "configs", title: "Own configs", align: "right", cell: (each) => count(Object.keys(each.configs).length), sort: true },
];
const LIST = { size: 50, columns: COLUMNS, sort: "name" };
const SHOWN = { label: "Topics", columns: COLUMNS, keyOf: (each) => each.name, what: "topic" };

export function topicsPage(app) {
  return {
    title: "Topics",
    section: "topics",
    refreshMs: 10_000,
    load: (signal) => load(app, signal),
    view: (list) => view(app, list),
  };
}

async function load(app, signal) {
  const query = { ...listQuery(app, LIST), rates: true, internal: app.query.get("internal") === "shown" };
  try {
    return await loadList("topics", "topics", query, signal);
  } catch (error) {
    if (error.code !== "too_many_topics") throw error;
    return { ...(await loadList("topics", "topics", { ...query, sort: LIST.sort }, signal)), note: error.message };
  }
}

function view(app, list) {
  const search = app.query.get("search") ?? "";
  const create = (kind) => (mayCreateTopics() ? button("Create topic…", () => createTopic(app), kind) : null);
  return [
    pageHead("Topics", `${plural(list.total, "topic")}, ${plural(list.answer.partitions, "partition")}`, create("primary")),
    list.note ? notices([{ tone: "warn", title: "Sorted by name", text: list.note }]) : null,
    h(
      "div",
      { class: "toolbar" },
      listSearch(app, "Search topics"),
      h("label", { class: "check" }, h("input", { type: "checkbox", checked: app.query.get("internal") === "shown", onchange: (event) => app.ask({ internal: event.target.checked ? "shown" : null, page: null }) }), "Internal topics"),
    ),
    list.items.length
      ? listTable(app, list, SHOWN)
      : search
        ? empty(`No topic has “${search}” in its name.`, button("Clear the search", () => app.ask({ search: null })))
        : empty("There are no topics yet. Create one here, or by any Kafka client.", create("primary")),
  ];
}

function createTopic(app) {
  const state = { name: "", partitions: "", replication_factor: "", configs: "" };
  dialog({
    title: "Create a topic",
    verb: "Create",
    state,
    body: () => [
      field(state, "name", "Name", { required: true, maxlength: 249 }),
      h(
        "div",
        { class: "pair" },
        field(state, "partitions", "Partitions", { kind: "number", min: 1, hint: "empty: num.partitions" }),
        field(state, "replication_factor", "Replication factor", { kind: "number", min: 1, hint: "empty: default.replication.factor" }),
      ),
      field(state, "configs", "Configs", { rows: 4, hint: "one name=value a line, such as retention.ms=86400000" }),
    ],
    async act() {
      const body = { name: state.name, configs: parseConfigs(state.configs) };
      for (const name of ["partitions", "replication_factor"]) if (state[name] !== "") body[name] = Number(state[name]);
      const made = await act("POST", "topics", body);
      app.tell(`Topic ${made.name} has ${plural(made.partitions, "partition")}`);
      app.go(topicHref(made.name));
    },
  });
}

/** Return {name: value} of lines.  Raises Error naming a line that is wrong. */
function parseConfigs(text) {
  const configs = {};
  for (const line of text.split("\n").map((each) => each.trim())) {
    if (!line) continue;
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`“${line}” is not name=value`);
    configs[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return configs;
}
