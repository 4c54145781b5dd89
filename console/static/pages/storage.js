// Storage: where the log lies, how much room is left, and which topics take it.

import { get, getAll } from "../api.js";
import { h } from "../dom.js";
import { bytes, count, isKnown, percent } from "../format.js";
import { bar, card, empty, nextOrder, orderOf, pageHead, pager, searchField, sorted, table, tile, tiles } from "../widgets.js";
import { topicHref } from "./shared.js";

const TOPICS_MAX = 10_000;
const SIZE = 50;

export function storagePage(app) {
  return {
    title: "Storage",
    section: "storage",
    refreshMs: 15_000,
    async load(signal) {
      const [storage, topics] = await Promise.all([get("storage", {}, signal), getAll("topics", "topics", {}, TOPICS_MAX, signal)]);
      return { storage, topics };
    },
    view: (data) => view(app, data),
  };
}

function view(app, { storage, topics: { items } }) {
  const { space } = storage;
  const share = space && space.capacity_bytes ? space.used_bytes / space.capacity_bytes : null;
  return [
    pageHead("Storage", h("code", null, storage.root)),
    storage.error ? h("div", { class: "notice warn", role: "alert" }, h("div", null, h("strong", null, "Storage does not tell its room"), h("p", null, storage.error))) : null,
    tiles(
      tile("Capacity", bytes(space?.capacity_bytes)),
      tile("Used", bytes(space?.used_bytes), isKnown(share) ? percent(share) : ""),
      tile("Free", bytes(space?.remaining_bytes)),
      tile("Datanodes", isKnown(storage.datanodes) ? count(storage.datanodes) : "–"),
    ),
    isKnown(share) ? h("p", { class: "meter", role: "img", "aria-label": `${percent(share)} used` }, bar(share, share > 0.9 ? "bad" : share > 0.8 ? "warn" : "")) : null,
    topicsCard(app, items),
  ];
}

function topicsCard(app, items) {
  const search = app.query.get("search") ?? "";
  const shown = items.filter((each) => each.name.toLowerCase().includes(search.toLowerCase()));
  const hasBytes = items.some((each) => isKnown(each.bytes));
  const most = Math.max(1, ...items.map((each) => each.bytes ?? 0));
  const order = orderOf(app.query.get("sort"), hasBytes ? "-bytes" : "name");
  const columns = [
    { name: "name", title: "Topic", cell: (each) => h("a", { href: topicHref(each.name, each.partitions === 1 ? "/partitions/0" : "") }, each.name), sort: (each) => each.name },
    { name: "partitions", title: "Partitions", align: "right", cell: (each) => count(each.partitions), sort: (each) => each.partitions },
    { name: "copies", title: "Copies", align: "right", cell: (each) => count(each.replication_factor), sort: (each) => each.replication_factor },
    hasBytes ? { name: "bytes", title: "Size", align: "right", cell: (each) => h("span", { class: "with-bar" }, bar((each.bytes ?? 0) / most), bytes(each.bytes)), sort: (each) => each.bytes } : null,
  ].filter(Boolean);
  const page = Math.min(Math.max(0, Number(app.query.get("page") ?? 0) || 0), Math.max(0, Math.ceil(shown.length / SIZE) - 1));
  const rows = sorted(shown, columns, order).slice(page * SIZE, (page + 1) * SIZE);
  return card("Topics", [
    h("p", { class: "remark" }, "A partition's page lists its segment files, their blocks and the datanodes that hold them."),
    h("div", { class: "toolbar" }, searchField("Search topics", search, (text) => app.set({ search: text, page: null }))),
    rows.length
      ? [
          table({ label: "Topics by size", rows, columns, keyOf: (each) => each.name, order, onsort: (name) => app.set({ sort: nextOrder(order, name), page: null }) }),
          pager({ page, size: SIZE, total: shown.length, go: (number) => app.set({ page: number || null }), what: "topic" }),
        ]
      : empty(search ? `No topic has “${search}” in its name.` : "There are no topics yet."),
  ]);
}
