// One partition: its owner and offsets, its open transactions, and its segment files with the datanodes of their blocks.

import { get, path } from "../api.js";
import { h } from "../dom.js";
import { bytes, count, isKnown, plural, span, time } from "../format.js";
import { rightsOn } from "../session.js";
import { badge, bar, button, card, empty, notices, pageHead, table, tile, tiles } from "../widgets.js";
import { partitionState, shortName, topicHref, topicLink, transactionLink, transactionState } from "./shared.js";

const SEGMENTS = 100;
const TRANSACTIONS = 50;
const SHOWN_BLOCKS = 50;

export function partitionPage(app, name, number) {
  const partition = Number(number);
  let after = "";
  return {
    title: `${name} / ${partition}`,
    section: "topics",
    refreshMs: 10_000,
    async load(signal) {
      const [details, open, segments] = await Promise.all([
        get(path`topics/${name}`, { after: partition - 1, limit: 1 }, signal),
        openTransactions(name, partition, signal),
        get(path`topics/${name}/partitions/${partition}/segments`, { after, limit: SEGMENTS }, signal).catch((error) => {
          if (!("status" in error) || error.status === 404) throw error;
          return { error: error.message, segments: [], next: null };
        }),
      ]);
      return { topic: details.topic, facts: details.partitions[0], open, segments };
    },
    view: ({ topic, facts, open, segments }) => [
      pageHead(h("span", null, topicLink(name), ` / ${partition}`), facts.why || null, h("a", { class: "button", href: topicHref(name, `/records?partition=${partition}`) }, "Records")),
      tiles(
        tile("State", partitionState(facts)),
        tile("Broker", shortName(facts.owner)),
        tile("Epoch", count(facts.epoch)),
        tile("Log start", count(facts.log_start)),
        tile("Last stable offset", count(open?.last_stable_offset), open?.last_stable_offset < open?.high_watermark ? `${plural(open.high_watermark - open.last_stable_offset, "offset")} below the high watermark` : ""),
        tile("High watermark", count(open?.high_watermark ?? facts.high_watermark)),
        tile("Size", bytes(facts.bytes)),
      ),
      open ? transactionsCard(open) : null,
      segmentsCard(topic, facts, segments, (text) => ((after = text), app.reload()), after),
      nodesCard(segments.segments),
    ],
  };
}

/** Load the open transactions; null for a user who may not read the topic, {error, transactions} if they are not known. */
async function openTransactions(name, partition, signal) {
  if (!(await rightsOn("topic", name, signal)).includes("READ")) return null;
  return get(path`topics/${name}/partitions/${partition}/transactions`, { limit: TRANSACTIONS }, signal).catch((error) => {
    if (!("status" in error) || error.status === 404) throw error;
    return { error: error.message, transactions: [], total: 0, shards_not_loaded: [] };
  });
}

/** Return the card of the open transactions; null without any. */
function transactionsCard({ error, transactions, total, shards_not_loaded: missing }) {
  if (error) return card("Open transactions", notices([{ tone: "warn", title: "Open transactions are not known", text: error }]));
  if (total === 0) return null;
  const now = Date.now();
  const unknown = missing.length ? `it may be of the shards that are not loaded: ${missing.map(({ shard }) => shard).join(", ")}` : "no coordinator that you may ask knows the producer: bmq transaction find-hanging says whether the transaction hangs";
  return card("Open transactions", [
    table({
      label: "Open transactions",
      rows: transactions,
      keyOf: (each) => each.producer_id,
      columns: [
        { name: "start", title: "From offset", align: "right", cell: (each) => count(each.start_offset) },
        { name: "id", title: "Transactional id", cell: (each) => (each.transactional_id === null ? h("span", { class: "muted", title: unknown }, "not known") : transactionLink(each.transactional_id)) },
        { name: "state", title: "State", cell: (each) => (each.state === null ? h("span", { class: "muted" }, "not known") : transactionState(each.state)) },
        { name: "age", title: "Open for", align: "right", class: "nowrap", cell: (each) => (isKnown(each.age_ms) ? span(each.age_ms) : h("span", { class: "muted" }, "not known")) },
        { name: "producer", title: "Producer id", align: "right", cell: (each) => h("a", { href: `#/transactions?producer_id=${each.producer_id}` }, count(each.producer_id)) },
        { name: "epoch", title: "Epoch", align: "right", cell: (each) => count(each.producer_epoch) },
        { name: "last", title: "Last record", align: "right", class: "nowrap", cell: (each) => h("span", { title: time(each.last_timestamp_ms) }, `${span(now - each.last_timestamp_ms)} ago`) },
      ],
    }),
    transactions.some((each) => each.transactional_id === null) ? h("p", { class: "hint" }, `Transactional ids not known: ${unknown}.`) : null,
    total > transactions.length ? h("p", { class: "hint" }, `and ${plural(total - transactions.length, "further transaction")} that began later`) : null,
  ]);
}

/** Return the offsets of a segment: those of an open one up to the high watermark, which only grows. */
function offsetsOf({ base_offset: base, end_offset: end, is_closed: isClosed }, { high_watermark: high }) {
  if (isKnown(end)) return `${count(base)} to ${count(end - 1)}`;
  return !isClosed && isKnown(high) && high > base ? `${count(base)} to ${count(high - 1)} so far` : `from ${count(base)}`;
}

function segmentsCard(topic, facts, { segments, next, error }, go, after) {
  const body = [
    error ? h("div", { class: "notice bad", role: "alert" }, h("div", null, h("strong", null, "Storage does not report all facts"), h("p", null, error))) : null,
    segments.length
      ? table({
          label: "Segments",
          rows: segments,
          keyOf: (each) => each.segment,
          columns: [
            { name: "segment", title: "Segment", cell: (each) => h("code", null, each.segment) },
            { name: "offsets", title: "Offsets", align: "right", cell: (each) => offsetsOf(each, facts) },
            { name: "epoch", title: "Epoch", align: "right", cell: (each) => count(each.epoch) },
            { name: "bytes", title: "Size", align: "right", cell: (each) => bytes(each.bytes) },
            { name: "state", title: "State", cell: (each) => (each.is_closed ? badge("closed") : badge("open", "info")) },
            { name: "modified", title: "Modified", class: "nowrap", cell: (each) => time(each.modified_ms) },
            { name: "blocks", title: "Blocks and datanodes", cell: (each) => blocks(each, topic.replication_factor) },
          ],
        })
      : error ? null : empty("There is no segment yet: the first record creates one."),
    after || next ? h("p", { class: "pager" }, after ? button("First page", () => go(""), "small") : null, next ? button("Next", () => go(next), "small") : null) : null,
  ];
  return card("Segments", body);
}

function blocks({ blocks: found }, copies) {
  if (found === null) return h("span", { class: "muted" }, "not reported by storage");
  if (found.length === 0) return h("span", { class: "muted" }, "none");
  const fewest = Math.min(...found.map(({ nodes }) => nodes.length));
  return h(
    "details",
    null,
    h("summary", null, plural(found.length, "block"), " ", fewest < copies ? badge(`${fewest} of ${copies} replicas`, "warn") : badge(plural(fewest, "replica"), "good")),
    h("ul", { class: "blocks" }, found.slice(0, SHOWN_BLOCKS).map(({ position, bytes: size, nodes }) => h("li", null, `at ${count(position)}, ${bytes(size)}: `, h("code", null, nodes.join(", ") || "no datanode"))), found.length > SHOWN_BLOCKS ? h("li", null, `and ${plural(found.length - SHOWN_BLOCKS, "further block")}`) : null),
  );
}

function nodesCard(segments) {
  const held = new Map();
  for (const { blocks: found } of segments) {
    for (const { bytes: size, nodes } of found ?? []) {
      for (const node of nodes) {
        const facts = held.get(node) ?? { node, blocks: 0, bytes: 0 };
        facts.blocks += 1;
        facts.bytes += size;
        held.set(node, facts);
      }
    }
  }
  if (held.size === 0) return null;
  const rows = [...held.values()].sort((one, other) => other.bytes - one.bytes);
  return card(
    "Datanodes of these segments",
    table({
      label: "Datanodes",
      rows,
      keyOf: (each) => each.node,
      columns: [
        { name: "node", title: "Datanode", cell: (each) => h("code", null, each.node) },
        { name: "blocks", title: "Blocks", align: "right", cell: (each) => count(each.blocks) },
        { name: "bytes", title: "Bytes", align: "right", cell: (each) => bytes(each.bytes) },
        { name: "share", title: "Share", cell: (each) => bar(each.bytes / rows[0].bytes) },
      ],
    }),
  );
}
