// Records of a topic: read from a place, in a format; and a dialog to produce one.

import { act, get, path } from "../api.js";
import { dialog, field } from "../dialog.js";
import { h } from "../dom.js";
import { bytes, count, plural, time } from "../format.js";
import { badge, button, copy, empty, table } from "../widgets.js";

const STARTS = { latest: "newest", earliest: "oldest", offset: "from offset", time: "from time" };
const FORMATS = { auto: "format: automatic", text: "text", json: "JSON", hex: "hex", base64: "base64", registry: "by the registry's schema" };
const JSON_FORMATS = ["json", "avro", "protobuf"]; // the last two are shown as JSON
const LEVELS = { read_committed: "committed", read_uncommitted: "all, also uncommitted" };
const LIMITS = ["20", "50", "100", "500"];
const PREVIEW = 160;
const DEPTH_SHOWN = 50; // deeper levels are not indented further: a value may nest thousands of times

/** Return the tab: {load, view, queried, produce}.  Its parameters are in the page's address. */
export function recordsTab(app, name) {
  const open = new Set();
  let draft = fieldsOf(app.query);
  let asksToProduce = app.query.get("produce") === "1";
  const tab = {
    async load(signal) {
      if (asksToProduce) {
        asksToProduce = false;
        setTimeout(tab.produce);
      }
      const records = await get(path`topics/${name}/records`, queryOf(draft), signal).catch((error) => {
        if (error.status !== 400 && error.code !== "unknown_partition") throw error;
        return { records: [], partitions: [], searched: "", has_more: false, refused: error.message }; // the form can mend it
      });
      open.clear();
      return records;
    },
    queried() {
      draft = fieldsOf(app.query);
      app.reload();
    },
    view: (data) => view(app, draft, data, open, read, onward),
    produce: () => produce(app, name),
  };
  function read(changes = {}) {
    Object.assign(draft, changes);
    app.set({ produce: null, ...draft });
    app.reload();
  }
  /** Read on after the records that are shown, in the one partition. */
  function onward(part) {
    read({ partition: String(part.partition), start: "offset", offset: String(part.next) });
  }
  return tab;
}

function fieldsOf(query) {
  const fields = { start: "latest", partition: "", offset: "", time: "", key: "", format: "auto", limit: "50", isolation: "read_committed" };
  for (const name of Object.keys(fields)) fields[name] = query.get(name) ?? fields[name];
  if (!(fields.start in STARTS)) fields.start = "latest";
  if (!(fields.format in FORMATS)) fields.format = "auto";
  if (!(fields.isolation in LEVELS)) fields.isolation = "read_committed";
  return fields;
}

function queryOf({ start, partition, offset, time: at, key, format, limit, isolation }) {
  const query = { partition, format, limit, isolation_level: isolation };
  if (key !== "") query.key = key;
  if (start === "earliest") query.offset = "earliest";
  if (start === "offset") query.offset = offset || "0";
  if (start === "time" && at) query.timestamp = String(new Date(at).getTime());
  return query;
}

function view(app, draft, { records, partitions, searched, has_more: hasMore, refused }, open, read, onward) {
  const failed = partitions.filter((each) => each.error);
  const select = (name, options, label) => h("select", { "aria-label": label, value: draft[name], onchange: (event) => read({ [name]: event.target.value }) }, Object.entries(options).map(([value, text]) => h("option", { value, selected: value === draft[name] }, text)));
  const input = (name, label, kind = "text", props = {}) => h("input", { type: kind, "aria-label": label, placeholder: label, value: draft[name], autocomplete: "off", spellcheck: "false", oninput: (event) => (draft[name] = event.target.value), ...props });
  const alone = partitions.length === 1 ? partitions[0] : null;
  return [
    h(
      "form",
      { class: "toolbar", role: "search", "aria-label": "Records", onsubmit: (event) => (event.preventDefault(), read()) },
      select("start", STARTS, "Where to begin"),
      draft.start === "offset" ? input("offset", "Offset", "number", { min: 0, class: "narrow" }) : null,
      draft.start === "time" ? input("time", "Time", "datetime-local", { step: 1 }) : null,
      input("partition", "Partition (all)", "number", { min: 0, class: "narrow" }),
      input("key", "Key is exactly"),
      select("format", FORMATS, "Format"),
      select("limit", Object.fromEntries(LIMITS.map((each) => [each, `${each} records`])), "Records at most"),
      select("isolation", LEVELS, "Isolation level"),
      h("button", { type: "submit", class: "button primary" }, "Read"),
    ),
    refused ? h("div", { class: "notice warn", role: "alert" }, h("div", null, h("strong", null, "Nothing was read"), h("p", null, `${refused[0].toUpperCase()}${refused.slice(1)}.`), h("p", null, "Fill in the form above, for example with a partition or a key, and choose Read."))) : null,
    failed.map((each) => h("div", { class: "notice bad", role: "alert" }, h("div", null, h("strong", null, `Partition ${each.partition} was not read to its end`), h("p", null, each.error)))),
    refused ? null : records.length
      ? table({
          label: "Records",
          rows: records,
          keyOf: (each) => `${each.partition} ${each.offset}`,
          columns: columnsOf(app, open),
          rowClass: (each) => (open.has(keyOf(each)) ? "open" : null),
          detail: (each) => (open.has(keyOf(each)) ? detail(app, each) : null),
        })
      : empty(draft.key ? "No record that was searched has this key." : "There are no records here.", h("p", null, alone ? remains(alone) : "Produce one, or start at another place.")),
    refused ? null : h(
      "p",
      { class: "pager" },
      summary(draft, records, hasMore),
      searched ? `. Searched: ${searched}.` : null,
      alone && alone.next !== null && alone.next < endOf(alone) ? button(`Read on from offset ${count(alone.next)}`, () => onward(alone), "small") : null,
    ),
  ];
}

/** Return how many records are shown, in which order, and whether there are others. */
function summary({ start, key }, records, hasMore) {
  const shown = plural(records.length, "record");
  if (records.length === 0) return shown;
  if (start === "latest" && key === "") return `${shown}, the newest first${hasMore ? "; there are older ones" : ""}`;
  return `${shown}${hasMore ? "; there are newer ones" : ""}`;
}

/** Return the end of a partition's records at the isolation level that was read. */
function endOf({ last_stable_offset: stable, high_watermark: high }) {
  return stable ?? high;
}

function remains(part) {
  const { log_start: start, high_watermark: high, next } = part;
  const end = endOf(part);
  if (start === high) return "The partition is empty.";
  if (start === end) return `A transaction is open from offset ${count(end)} on.`;
  return next < end ? `Offsets ${count(next)} to ${count(end - 1)} were not read: read on.` : `The partition has the offsets ${count(start)} to ${count(end - 1)}.`;
}

function keyOf({ partition, offset }) {
  return `${partition} ${offset}`;
}

function columnsOf(app, open) {
  const toggle = (each) => {
    if (!open.delete(keyOf(each))) open.add(keyOf(each));
    app.draw();
  };
  return [
    {
      name: "offset", title: "Offset", class: "nowrap",
      cell: (each) => h("button", { type: "button", class: "expand", "aria-expanded": String(open.has(keyOf(each))), onclick: () => toggle(each) }, h("span", { "aria-hidden": "true" }, open.has(keyOf(each)) ? "▾ " : "▸ "), count(each.offset)),
    },
    { name: "partition", title: "Part.", align: "right", cell: (each) => count(each.partition) },
    { name: "time", title: "Time", class: "nowrap", cell: (each) => time(each.timestamp) },
    { name: "key", title: "Key", cell: (each) => preview(each.key) },
    { name: "value", title: "Value", class: "wide", cell: (each) => (each.is_control ? badge(markerText(each), "info") : preview(each.value)) },
    { name: "size", title: "Size", align: "right", class: "nowrap", cell: (each) => bytes(each.value.bytes) },
  ];
}

function markerText({ marker, producer_id: producer }) {
  return marker === "other" ? "control record" : `${marker.toUpperCase()} marker of producer ${producer}`;
}

function preview({ format, text }) {
  if (text === null) return h("span", { class: "muted" }, "null");
  const line = text.slice(0, PREVIEW).replaceAll(/\s+/g, " ");
  return h("code", { class: "preview" }, line || "(empty)", text.length > PREVIEW ? "…" : "", format === "hex" ? h("span", { class: "muted" }, " hex") : null);
}

function detail(app, each) {
  return h(
    "div",
    { class: "record" },
    h("h3", null, `Offset ${count(each.offset)} of partition ${each.partition}`),
    payload("Key", each.key, app),
    payload("Value", each.value, app),
    each.headers.length
      ? [h("h4", null, "Headers"), h("dl", { class: "facts" }, each.headers.map(({ key, value }) => [h("dt", null, key || "(empty)"), h("dd", null, value.text === null ? h("span", { class: "muted" }, "null") : h("code", { class: "wrap" }, value.text))]))]
      : null,
  );
}

function payload(title, { format, text, bytes: size, is_cut: isCut, schema_id: schema, error }, app) {
  if (text === null) return [h("h4", null, title), h("p", { class: "muted" }, "null")];
  const shown = JSON_FORMATS.includes(format) ? indented(text, isCut) : text;
  return [
    h("div", { class: "payload-head" }, h("h4", null, title), h("span", { class: "muted" }, `${format}${schema === null ? "" : ` by schema ${schema}`}, ${bytes(size)}${isCut ? ", cut: bmq segment cat shows all of it" : ""}`), button("Copy", () => copy(text, app.tell, `${title} copied`), "small", { "aria-label": `Copy the ${title.toLowerCase()}` })),
    error ? h("p", { class: "notice warn" }, `Not shown by its schema: ${error}`) : null,
    h("pre", { tabindex: "0", role: "group", "aria-label": title }, shown),
  ];
}

/** Return JSON with line breaks, token by token: parsing and printing it would make 1.1 of 1.10, and drop one of two
 *  equal names. */
function indented(text, isCut) {
  if (isCut) return text;
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[^\s"[\]{},:]+|[[\]{},:]/g);
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, DEPTH_SHOWN))}`;
  return tokens
    .map((token, index) => {
      if (token === ":") return ": ";
      if (token === ",") return `,${line()}`;
      if (token === "{" || token === "[") {
        depth += 1;
        return "]}".includes(tokens[index + 1]) ? token : token + line();
      }
      if (token !== "}" && token !== "]") return token;
      depth -= 1;
      return "[{".includes(tokens[index - 1]) ? token : line() + token;
    })
    .join("");
}

function produce(app, name) {
  const state = { partition: "", key: "", value: "", headers: "", key_format: "text", value_format: "text", has_key: true, is_null: false };
  const formats = [["text", "text"], ["json", "JSON"], ["hex", "hex"], ["base64", "base64"]];
  dialog({
    title: `Produce to ${name}`,
    verb: "Produce",
    state,
    body: (_, redraw) => [
      field(state, "has_key", "With a key", { kind: "checkbox" }, redraw),
      state.has_key ? h("div", { class: "pair" }, field(state, "key", "Key"), field(state, "key_format", "Key is", { options: formats })) : null,
      field(state, "is_null", "Null value (a tombstone)", { kind: "checkbox" }, redraw),
      state.is_null ? null : [field(state, "value", "Value", { rows: 6 }), field(state, "value_format", "Value is", { options: formats })],
      h("div", { class: "pair" }, field(state, "headers", "Headers", { rows: 2, hint: "one name: value a line" }), field(state, "partition", "Partition", { kind: "number", min: 0, hint: "empty: by the key, as Kafka's clients do" })),
    ],
    async act() {
      const body = {
        key: state.has_key ? state.key : null,
        value: state.is_null ? null : state.value,
        key_format: state.key_format,
        value_format: state.value_format,
        headers: headersOf(state.headers),
      };
      if (state.partition !== "") body.partition = Number(state.partition);
      const made = await act("POST", path`topics/${name}/records`, body);
      app.tell(`Produced to partition ${made.partition} at offset ${count(made.offset)}`);
      app.reload();
    },
  });
}

function headersOf(text) {
  return text
    .split("\n")
    .filter((line) => line.trim())
    .map((line) => {
      const at = line.indexOf(":");
      if (at < 0) throw new Error(`“${line}” is not name: value`);
      return { key: line.slice(0, at).trim(), value: line.slice(at + 1).trim() };
    });
}
