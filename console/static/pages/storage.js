// Storage: where the log lies, how much room is left, and what topics keep.

import { get, getAll } from "../api.js";
import { h } from "../dom.js";
import { bytes, count, isKnown, percent, plural, span } from "../format.js";
import { bar, card, empty, nextOrder, notices, orderOf, pageHead, pager, searchField, sorted, table, tile, tiles } from "../widgets.js";
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
  const { space, usage } = storage;
  const share = space && space.capacity_bytes ? space.used_bytes / space.capacity_bytes : null;
  const found = [];
  if (storage.error) found.push({ tone: "bad", title: "Storage does not tell all of this", text: storage.error });
  if (storage.is_in_safe_mode) found.push({ tone: "bad", title: "HDFS is in safe mode", text: "Nothing can be written. It leaves safe mode by itself once enough blocks are reported; see hdfs dfsadmin -safemode get." });
  if (storage.missing_blocks) found.push({ tone: "bad", title: `${plural(storage.missing_blocks, "block")} of this HDFS without a copy`, text: "They may be of other users' files: hdfs fsck names them." });
  return [
    pageHead("Storage", h("code", null, storage.root)),
    found.length ? notices(found) : null,
    tiles(
      tile("Capacity", bytes(space?.capacity_bytes), "of all who use it"),
      tile("Used", bytes(space?.used_bytes), isKnown(share) ? percent(share) : ""),
      tile("Free", bytes(space?.remaining_bytes)),
      usage ? tile("This root", bytes(usage.bytes), isKnown(usage.bytes_quota) ? `quota ${bytes(usage.bytes_quota)}` : "no quota") : null,
      usage ? tile("Files and folders", count(usage.names), isKnown(usage.names_quota) ? `quota ${count(usage.names_quota)}` : "no quota") : null,
      isKnown(storage.datanodes) ? tile("Datanodes", count(storage.datanodes), "live") : null,
    ),
    isKnown(share) ? h("div", { class: "meter", role: "img", "aria-label": `${percent(share)} used` }, bar(share, share > 0.9 ? "bad" : share > 0.8 ? "warn" : "")) : null,
    topicsCard(app, items),
  ];
}

function topicsCard(app, items) {
  const search = app.query.get("search") ?? "";
  const shown = items.filter((each) => each.name.toLowerCase().includes(search.toLowerCase()));
  const order = orderOf(app.query.get("sort"), "name");
  const columns = [
    { name: "name", title: "Topic", cell: (each) => h("a", { href: topicHref(each.name, each.partitions === 1 ? "/partitions/0" : "") }, each.name), sort: (each) => each.name },
    { name: "partitions", title: "Partitions", align: "right", cell: (each) => count(each.partitions), sort: (each) => each.partitions },
    { name: "copies", title: "Copies", align: "right", cell: (each) => count(each.replication_factor), sort: (each) => each.replication_factor },
    { name: "retention", title: "Own retention", cell: (each) => retention(each.configs), sort: (each) => retention(each.configs) },
  ];
  const page = Math.min(Math.max(0, Number(app.query.get("page") ?? 0) || 0), Math.max(0, Math.ceil(shown.length / SIZE) - 1));
  const rows = sorted(shown, columns, order).slice(page * SIZE, (page + 1) * SIZE);
  return card("Topics", [
    h("p", { class: "remark" }, "A partition's page lists its segment files, their blocks and the datanodes that hold them."),
    h("div", { class: "toolbar" }, searchField("Search topics", search, (text) => app.set({ search: text, page: null }))),
    rows.length
      ? [
          table({ label: "Topics", rows, columns, keyOf: (each) => each.name, order, onsort: (name) => app.set({ sort: nextOrder(order, name), page: null }) }),
          pager({ page, size: SIZE, total: shown.length, go: (number) => app.set({ page: number || null }), what: "topic" }),
        ]
      : empty(search ? `No topic has “${search}” in its name.` : "There are no topics yet."),
  ]);
}

/** Return what a topic sets of its retention; the rest is the brokers'. */
function retention(configs) {
  const found = [];
  if (configs["retention.ms"] !== undefined) found.push(configs["retention.ms"] === "-1" ? "forever" : span(Number(configs["retention.ms"])));
  if (configs["retention.bytes"] !== undefined && configs["retention.bytes"] !== "-1") found.push(`${bytes(Number(configs["retention.bytes"]))} a partition`);
  return found.join(", ");
}
