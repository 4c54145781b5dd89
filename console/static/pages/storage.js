// Storage: the root of the log, the space left, and the sizes of topics.

import { get } from "../api.js";
import { h } from "../dom.js";
import { bytes, count, isKnown, percent, plural, span } from "../format.js";
import { bar, card, empty, notices, pageHead, tile, tiles } from "../widgets.js";
import { listQuery, listSearch, listTable, loadList } from "./list.js";
import { topicHref } from "./shared.js";

const SHOWN_SILENT = 8;
const COLUMNS = [
  { name: "name", title: "Topic", cell: (each) => h("a", { href: topicHref(each.name, each.partitions === 1 ? "/partitions/0" : "") }, each.name), sort: true },
  { name: "bytes", title: "Size", align: "right", cell: (each) => bytes(each.bytes), sort: true },
  { name: "partitions", title: "Partitions", align: "right", cell: (each) => count(each.partitions), sort: true },
  { name: "replication_factor", title: "Copies", align: "right", cell: (each) => count(each.replication_factor), sort: true },
  { name: "retention", title: "Own retention", cell: (each) => retention(each.configs) },
];
const LIST = { size: 50, columns: COLUMNS, sort: "-bytes" };
const SHOWN = { label: "Topics", columns: COLUMNS, keyOf: (each) => each.name, what: "topic" };

export function storagePage(app) {
  return {
    title: "Storage",
    section: "storage",
    refreshMs: 15_000,
    async load(signal) {
      const [storage, topics] = await Promise.all([get("storage", {}, signal), loadList("storage/topics", "topics", listQuery(app, LIST), signal)]);
      return { storage, topics };
    },
    view: (data) => view(app, data),
  };
}

function view(app, { storage, topics }) {
  const { space, usage } = storage;
  const share = space && space.capacity_bytes ? space.used_bytes / space.capacity_bytes : null;
  const found = [];
  if (storage.error) found.push({ tone: "bad", title: "Storage does not report all facts", text: storage.error });
  if (storage.is_in_safe_mode) found.push({ tone: "bad", title: "HDFS is in safe mode", text: "Nothing can be written. It leaves safe mode by itself once enough blocks are reported; see hdfs dfsadmin -safemode get." });
  if (storage.missing_blocks) found.push({ tone: "bad", title: `${plural(storage.missing_blocks, "block")} of this HDFS without a replica`, text: "They may be of other users' files: hdfs fsck lists them." });
  return [
    pageHead("Storage", h("code", null, storage.root)),
    found.length ? notices(found) : null,
    tiles(
      tile("Capacity", bytes(space?.capacity_bytes), "of the whole storage"),
      tile("Used", bytes(space?.used_bytes), isKnown(share) ? percent(share) : ""),
      tile("Free", bytes(space?.remaining_bytes)),
      usage ? tile("This root", bytes(usage.bytes), isKnown(usage.bytes_quota) ? `quota ${bytes(usage.bytes_quota)}` : "no quota") : null,
      usage ? tile("Files and folders", count(usage.names), isKnown(usage.names_quota) ? `quota ${count(usage.names_quota)}` : "no quota") : null,
      isKnown(storage.datanodes) ? tile("Datanodes", count(storage.datanodes), "live") : null,
    ),
    isKnown(share) ? h("div", { class: "meter", role: "img", "aria-label": `${percent(share)} used` }, bar(share, share > 0.9 ? "bad" : share > 0.8 ? "warn" : "")) : null,
    topicsCard(app, topics, storage.root.startsWith("hdfs:")),
  ];
}

function topicsCard(app, list, isHdfs) {
  const search = app.query.get("search") ?? "";
  const { bytes: sum, partitions_unknown: unknown, silent } = list.answer;
  const missing = [
    unknown ? `${plural(unknown, "partition")} not counted yet` : "",
    silent.length ? `without those of ${silent.slice(0, SHOWN_SILENT).join(", ")}${silent.length > SHOWN_SILENT ? ` and ${plural(silent.length - SHOWN_SILENT, "further broker")}` : ""}, which did not respond` : "",
  ].filter(Boolean);
  return card("Topics", [
    h("p", { class: "remark" }, [`${bytes(sum)} in ${plural(list.total, "topic")}, one copy of each file`, ...missing].join("; "), `. A partition's page lists its segment files${isHdfs ? ", their blocks and the datanodes that have them" : ""}.`),
    h("div", { class: "toolbar" }, listSearch(app, "Search topics")),
    list.items.length ? listTable(app, list, SHOWN) : empty(search ? `No topic has “${search}” in its name.` : "There are no topics yet."),
  ]);
}

/** Return the retention that is set for the topic itself; the rest is the brokers' default. */
function retention(configs) {
  const found = [];
  if (configs["retention.ms"] !== undefined) found.push(configs["retention.ms"] === "-1" ? "forever" : span(Number(configs["retention.ms"])));
  if (configs["retention.bytes"] !== undefined && configs["retention.bytes"] !== "-1") found.push(`${bytes(Number(configs["retention.bytes"]))} a partition`);
  return found.join(", ");
}
