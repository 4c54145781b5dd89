// All topics: searched, sorted and paged here, since the list is one answer of the process's memory.

import { act, getAll } from "../api.js";
import { dialog, field } from "../dialog.js";
import { h } from "../dom.js";
import { bytesPerSecond, count, perSecond, plural } from "../format.js";
import { badge, button, empty, nextOrder, orderOf, pageHead, pager, searchField, sorted, table } from "../widgets.js";
import { topicHref, topicLink } from "./shared.js";

const TOPICS_MAX = 10_000;
const SIZE = 50;

export function topicsPage(app) {
  return {
    title: "Topics",
    section: "topics",
    refreshMs: 10_000,
    load: (signal) => getAll("topics", "topics", { rates: true }, TOPICS_MAX, signal),
    view: (data) => view(app, data),
  };
}

function columnsOf() {
  return [
    { name: "name", title: "Name", cell: (each) => h("span", null, topicLink(each.name), each.is_internal ? [" ", badge("internal")] : null), sort: (each) => each.name },
    { name: "partitions", title: "Partitions", align: "right", cell: (each) => count(each.partitions), sort: (each) => each.partitions },
    { name: "replication_factor", title: "Copies", align: "right", cell: (each) => count(each.replication_factor), sort: (each) => each.replication_factor },
    { name: "records_in", title: "Records in", align: "right", cell: (each) => perSecond(each.rates?.records_in), sort: (each) => each.rates?.records_in },
    { name: "bytes_in", title: "Bytes in", align: "right", cell: (each) => bytesPerSecond(each.rates?.bytes_in), sort: (each) => each.rates?.bytes_in },
    { name: "bytes_out", title: "Bytes out", align: "right", cell: (each) => bytesPerSecond(each.rates?.bytes_out), sort: (each) => each.rates?.bytes_out },
    { name: "configs", title: "Own configs", align: "right", cell: (each) => count(Object.keys(each.configs).length), sort: (each) => Object.keys(each.configs).length },
  ];
}

function view(app, { items, total, isCut }) {
  const search = app.query.get("search") ?? "";
  const hidesInternal = app.query.get("internal") !== "shown";
  const wanted = search.toLowerCase();
  const shown = items.filter((each) => each.name.toLowerCase().includes(wanted) && !(hidesInternal && each.is_internal));
  const order = orderOf(app.query.get("sort"), "name");
  const columns = columnsOf();
  const page = Math.min(Math.max(0, Number(app.query.get("page") ?? 0) || 0), Math.max(0, Math.ceil(shown.length / SIZE) - 1));
  const rows = sorted(shown, columns, order).slice(page * SIZE, (page + 1) * SIZE);
  const partitions = items.reduce((sum, each) => sum + each.partitions, 0);
  const create = button("Create topic…", () => createTopic(app), "primary");
  return [
    pageHead("Topics", `${plural(total, "topic")}, ${plural(partitions, "partition")}${isCut ? `; the first ${count(items.length)} are listed, search with bmq topic list` : ""}`, create),
    h(
      "div",
      { class: "toolbar" },
      searchField("Search topics", search, (text) => app.set({ search: text, page: null })),
      h("label", { class: "check" }, h("input", { type: "checkbox", checked: !hidesInternal, onchange: (event) => app.set({ internal: event.target.checked ? "shown" : null, page: null }) }), "Internal topics"),
    ),
    rows.length
      ? [
          table({ label: "Topics", rows, columns, keyOf: (each) => each.name, order, onsort: (name) => app.set({ sort: nextOrder(order, name), page: null }) }),
          pager({ page, size: SIZE, total: shown.length, go: (number) => app.set({ page: number || null }), what: "topic" }),
        ]
      : search
        ? empty(`${isCut ? `None of the first ${count(items.length)} topics` : "No topic"} has “${search}” in its name.`, button("Clear the search", () => app.set({ search: null })))
        : empty("There are no topics yet. Create one here, or by any Kafka client.", button("Create topic…", () => createTopic(app), "primary")),
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
        field(state, "replication_factor", "Copies of each block", { kind: "number", min: 1, hint: "empty: default.replication.factor" }),
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

/** Return {name: value} of lines.  Raises Error naming the line that is none. */
export function parseConfigs(text) {
  const configs = {};
  for (const line of text.split("\n").map((each) => each.trim())) {
    if (!line) continue;
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`“${line}” is not name=value`);
    configs[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return configs;
}
