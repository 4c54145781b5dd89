// Dialogs and transient messages.  A dialog is the browser's own: it keeps the focus, and Escape closes it.

import { h, patchChildren } from "./dom.js";
import { button } from "./widgets.js";

const SHOWN_MS = 6000;

/** Show a message for a few seconds.  Screen readers read it out. */
export function tell(text, tone = "good") {
  const place = document.getElementById("messages");
  const message = h("div", { class: `message ${tone}` }, text);
  place.append(message);
  setTimeout(() => message.remove(), SHOWN_MS);
}

/**
 * Show a dialog.  `body(state, redraw)` returns its content, whose fields write to `state`; `act(state, redraw)` does the
 * work: the dialog closes when it succeeds, unless it returns false, and shows the reason when it fails.  `type` is a
 * text that must be typed to confirm a command that cannot be undone.
 */
export function dialog({ title, body, act, verb, danger = false, type = null, state = {} }) {
  if (document.querySelector("dialog")) return; // a second click, while the facts for the first one were loading
  const opener = document.activeElement;
  const element = h("dialog", { "aria-labelledby": "dialog-title", onclose: () => closed() });
  let error = null;
  let isBusy = false;
  let typed = "";
  const closed = () => {
    element.remove();
    if (opener?.isConnected) opener.focus();
  };
  const submit = async (event) => {
    event.preventDefault();
    if (isBusy || !act || (type !== null && typed !== type)) return;
    isBusy = true;
    error = null;
    draw();
    try {
      const isDone = await act(state, draw);
      if (isDone !== false) element.close();
    } catch (failed) {
      error = failed;
    } finally {
      isBusy = false;
      if (element.isConnected) draw();
    }
  };
  const draw = () => {
    const label = typeof verb === "function" ? verb(state) : verb;
    const confirm = type === null ? null : h("label", { class: "field" }, h("span", null, "Type ", h("code", null, type), " to confirm"), h("input", { type: "text", autocomplete: "off", spellcheck: "false", value: typed, oninput: (event) => ((typed = event.target.value), draw()) }));
    const form = h(
      "form",
      { method: "dialog", onsubmit: submit },
      h("h2", { id: "dialog-title" }, title),
      h("div", { class: "dialog-body" }, body(state, draw), confirm),
      error ? h("div", { class: "notice bad", role: "alert" }, h("p", null, error.message || String(error))) : null,
      h(
        "div",
        { class: "dialog-actions" },
        button(act ? "Cancel" : "Close", () => element.close()),
        act ? h("button", { type: "submit", class: `button ${danger ? "danger" : "primary"}`, disabled: isBusy || (type !== null && typed !== type) }, isBusy ? "Working…" : label) : null,
      ),
    );
    const next = h("dialog", null, form);
    patchChildren(element, next);
  };
  draw();
  document.body.append(element);
  element.showModal();
  element.querySelector("[autofocus], input, select, textarea")?.focus();
}

/** Return a labelled field of `state`; `props.options` makes it a choice, `props.rows` a text of several lines. */
export function field(state, name, label, props = {}, redraw = null) {
  const { options, rows, hint, kind = "text", ...rest } = props;
  const changed = (event) => {
    state[name] = kind === "checkbox" ? event.target.checked : event.target.value;
    redraw?.();
  };
  const id = `field-${name}`;
  const hintId = hint ? `hint-${name}` : null;
  let input;
  if (options) {
    input = h("select", { id, value: state[name], onchange: changed, "aria-describedby": hintId, ...rest }, options.map(([value, text]) => h("option", { value, selected: value === state[name] }, text)));
  } else if (rows) {
    input = h("textarea", { id, rows, value: state[name] ?? "", spellcheck: "false", oninput: changed, "aria-describedby": hintId, ...rest });
  } else if (kind === "checkbox") {
    return h("label", { class: "check" }, h("input", { type: "checkbox", checked: state[name], onchange: changed, ...rest }), label);
  } else {
    input = h("input", { id, type: kind, value: state[name] ?? "", autocomplete: "off", spellcheck: "false", oninput: changed, "aria-describedby": hintId, ...rest });
  }
  return h("div", { class: "field" }, h("label", { for: id }, label), input, hint ? h("p", { class: "hint", id: hintId }, hint) : null);
}
